//! Turns: most operations at once of a repository, of a storage class and of a claim.
//!
//! Whoever asks first is served first among those whose limits leave room, so a class that is full
//! holds nobody of another class up, and nobody of one class is overtaken by a later one of it.
//! One thread has all of it, so nothing is locked.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use tokio::sync::oneshot;

/// Something of which there is only so much, such as the turns of a Repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Limited {
    /// Names it.
    pub(crate) name: String,
    /// How many may have it at once.
    pub(crate) most: usize,
}

#[derive(Debug, Default)]
struct State {
    taken: BTreeMap<String, usize>,
    waiting: VecDeque<(u64, Vec<Limited>, oneshot::Sender<()>)>,
    next: u64,
}

impl State {
    fn fits(&self, wanted: &[Limited]) -> bool {
        wanted.iter().all(|of| self.taken.get(&of.name).is_none_or(|taken| *taken < of.most))
    }

    fn take(&mut self, wanted: &[Limited]) {
        for of in wanted {
            *self.taken.entry(of.name.clone()).or_default() += 1;
        }
    }

    fn give(&mut self, given: &[Limited]) {
        for of in given {
            if let Some(taken) = self.taken.get_mut(&of.name) {
                *taken -= 1;
                if *taken == 0 {
                    self.taken.remove(&of.name);
                }
            }
        }
    }
}

/// All turns of a controller.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Rc<RefCell<State>>);

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    of: Turns,
    held: Vec<Limited>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.of.0.borrow_mut().give(&self.held);
        self.of.admit();
    }
}

/// A place in the queue, until it has become a turn. It may be left at any time.
struct Place {
    of: Turns,
    number: u64,
    wanted: Vec<Limited>,
    is_turn: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_turn {
            return;
        }
        {
            let mut state = self.of.0.borrow_mut();
            let before = state.waiting.len();
            state.waiting.retain(|(number, ..)| *number != self.number);
            if state.waiting.len() == before {
                // It was admitted, and left before it knew.
                state.give(&self.wanted);
            }
        }
        self.of.admit();
    }
}

impl Turns {
    /// Waits for a turn of all of these at once. `tell` hears that it has to wait.
    pub(crate) async fn take(&self, wanted: Vec<Limited>, tell: impl FnOnce()) -> Turn {
        let (sender, mut receiver) = oneshot::channel();
        let mut place = {
            let mut state = self.0.borrow_mut();
            let number = state.next;
            state.next += 1;
            state.waiting.push_back((number, wanted.clone(), sender));
            Place { of: self.clone(), number, wanted: wanted.clone(), is_turn: false }
        };
        self.admit();
        if receiver.try_recv().is_err() {
            tell();
            // The sender is in the queue for as long as the place is.
            let _ = receiver.await;
        }
        place.is_turn = true;
        Turn { of: self.clone(), held: wanted }
    }

    /// Takes a turn whether there is room or not: of an operation that is under way.
    pub(crate) fn force(&self, wanted: Vec<Limited>) -> Turn {
        self.0.borrow_mut().take(&wanted);
        Turn { of: self.clone(), held: wanted }
    }

    /// How many wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.0.borrow().waiting.len()
    }

    fn admit(&self) {
        let mut state = self.0.borrow_mut();
        let mut at = 0;
        while let Some((_, wanted, _)) = state.waiting.get(at) {
            if !state.fits(wanted) {
                at += 1;
                continue;
            }
            let Some((_, wanted, sender)) = state.waiting.remove(at) else { break };
            state.take(&wanted);
            // Whoever has left gives it back by its place.
            let _ = sender.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn block_on<F: Future>(of: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(of)
    }

    fn of(name: &str, most: usize) -> Limited {
        Limited { name: name.into(), most }
    }

    fn now<T>(future: impl Future<Output = T> + Unpin) -> Option<T> {
        future.now_or_never()
    }

    #[test]
    fn turns_are_given_in_order_and_no_class_holds_up_another() {
        block_on(async {
            let turns = Turns::default();
            let first = turns.take(vec![of("repo", 2), of("fast", 1)], || panic!("waits")).await;
            let mut second = Box::pin(turns.take(vec![of("repo", 2), of("fast", 1)], || {}));
            assert!(now(&mut second).is_none(), "the class is full");
            let mut third = Box::pin(turns.take(vec![of("repo", 2), of("slow", 1)], || {}));
            let third = now(&mut third).expect("another class has room");
            let mut fourth = Box::pin(turns.take(vec![of("repo", 2), of("slow", 1)], || {}));
            assert!(now(&mut fourth).is_none());
            assert_eq!(turns.waiting(), 2);
            drop(first);
            let second = now(&mut second).expect("it was first");
            assert!(now(&mut fourth).is_none(), "the repository is full");
            drop(third);
            drop(now(&mut fourth).expect("its turn"));
            drop(second);
            assert!(turns.0.borrow().taken.is_empty());
        });
    }

    #[test]
    fn whoever_leaves_the_queue_takes_nothing_along() {
        block_on(async {
            let turns = Turns::default();
            let held = turns.take(vec![of("a", 1)], || {}).await;
            let mut admitted = Box::pin(turns.take(vec![of("a", 1)], || {}));
            assert!(now(&mut admitted).is_none());
            let mut waiting = Box::pin(turns.take(vec![of("a", 1)], || {}));
            assert!(now(&mut waiting).is_none());
            // It is admitted, and never learns of it.
            drop(held);
            drop(admitted);
            let turn = now(&mut waiting).expect("the next one is admitted");
            drop(turn);
            assert!(turns.0.borrow().taken.is_empty());
            assert_eq!(turns.waiting(), 0);
        });
    }

    #[test]
    fn an_operation_under_way_has_its_turn_at_once() {
        block_on(async {
            let turns = Turns::default();
            let one = turns.force(vec![of("a", 1)]);
            let two = turns.force(vec![of("a", 1)]);
            let mut next = Box::pin(turns.take(vec![of("a", 1)], || {}));
            drop(one);
            assert!(now(&mut next).is_none(), "there is one too many");
            drop(two);
            assert!(now(&mut next).is_some());
        });
    }
}
