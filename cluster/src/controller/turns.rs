//! Turns: most operations at once of a repository, of a storage class and of a claim.
//!
//! Whoever asks first is served first among those whose limits leave room, so a class that is full
//! holds nobody of another class up, and nobody of one class is overtaken by a later one of it.
//! Who waits is told for whom. One thread has all of it, so nothing is locked.

use crate::engine::Key;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use tokio::sync::oneshot;

/// Something of which there is only so much, such as the turns of a Repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Limited {
    /// Names it.
    pub(crate) name: String,
    /// The same for people.
    pub(crate) text: String,
    /// How many may have it at once.
    pub(crate) most: usize,
    /// It is a claim, of which one may be told who is at work on it.
    pub(crate) is_claim: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Who has turns of each, the longest first.
    taken: BTreeMap<String, Vec<Rc<Key>>>,
    waiting: VecDeque<(u64, Wanted, oneshot::Sender<()>)>,
    next: u64,
}

/// What somebody wants, or has.
#[derive(Debug, Clone)]
struct Wanted {
    who: Rc<Key>,
    all: Vec<Limited>,
}

impl State {
    /// What there is no room in, and who has it.
    fn full<'s>(&'s self, wanted: &'s Wanted) -> Option<(&'s Limited, &'s [Rc<Key>])> {
        let of = |of: &'s Limited| Some((of, self.taken.get(&of.name)?.as_slice()));
        wanted.all.iter().filter_map(of).find(|(of, taken)| taken.len() >= of.most)
    }

    fn take(&mut self, wanted: &Wanted) {
        for of in &wanted.all {
            self.taken.entry(of.name.clone()).or_default().push(Rc::clone(&wanted.who));
        }
    }

    fn give(&mut self, given: &Wanted) {
        for of in &given.all {
            if let Some(taken) = self.taken.get_mut(&of.name) {
                let at = taken.iter().position(|who| *who == given.who);
                at.map(|at| taken.remove(at));
                if taken.is_empty() {
                    self.taken.remove(&of.name);
                }
            }
        }
    }

    /// What somebody waits for, as it is when the waiting begins. Where there is room, it waits behind
    /// one that came before. Of many that share something none is named: each may end at any time. And
    /// nobody learns of names in other namespaces.
    fn why(&self, wanted: &Wanted) -> String {
        match self.full(wanted) {
            None => "it waits for its turn".to_owned(),
            Some((of, [who])) if of.is_claim && who.namespace == wanted.who.namespace => {
                format!("it waits for its turn: {who} is at work on {}", of.text)
            }
            Some((of, _)) => format!("it waits for its turn: {} is in use", of.text),
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
    held: Wanted,
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
    wanted: Wanted,
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
    /// Waits for a turn of all of these at once, for somebody. `tell` hears that it has to wait, and
    /// for whom.
    pub(crate) async fn take(
        &self,
        (who, all): (&Key, Vec<Limited>),
        tell: impl FnOnce(&str),
    ) -> Turn {
        let (sender, mut receiver) = oneshot::channel();
        let wanted = Wanted { who: Rc::new(who.clone()), all };
        let mut place = {
            let mut state = self.0.borrow_mut();
            let number = state.next;
            state.next += 1;
            state.waiting.push_back((number, wanted.clone(), sender));
            Place { of: self.clone(), number, wanted: wanted.clone(), is_turn: false }
        };
        self.admit();
        if receiver.try_recv().is_err() {
            let why = self.0.borrow().why(&wanted);
            tell(&why);
            // The sender is in the queue for as long as the place is.
            let _ = receiver.await;
        }
        place.is_turn = true;
        Turn { of: self.clone(), held: wanted }
    }

    /// Takes a turn whether there is room or not: of an operation that is under way.
    pub(crate) fn force(&self, (who, all): (&Key, Vec<Limited>)) -> Turn {
        let wanted = Wanted { who: Rc::new(who.clone()), all };
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
            if state.full(wanted).is_some() {
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
    use crate::engine::Kind;
    use futures::FutureExt as _;

    fn block_on<F: Future>(of: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(of)
    }

    fn of(name: &str, most: usize) -> Limited {
        let is_claim = name.starts_with("claim");
        Limited { name: name.into(), text: format!("the {name}"), most, is_claim }
    }

    /// It lives as long as any turn.
    fn key(namespace: &str, name: &str) -> &'static Key {
        Box::leak(Box::new(Key::new(Kind::VolumeBackup, namespace, name)))
    }

    fn now<T>(future: impl Future<Output = T> + Unpin) -> Option<T> {
        future.now_or_never()
    }

    #[test]
    fn turns_are_given_in_order_and_no_class_holds_up_another() {
        block_on(async {
            let turns = Turns::default();
            let first = turns
                .take((key("shop", "x"), vec![of("repo", 2), of("fast", 1)]), |_| panic!("waits"))
                .await;
            let mut second = Box::pin(
                turns.take((key("shop", "x"), vec![of("repo", 2), of("fast", 1)]), |_| {}),
            );
            assert!(now(&mut second).is_none(), "the class is full");
            let mut third = Box::pin(
                turns.take((key("shop", "x"), vec![of("repo", 2), of("slow", 1)]), |_| {}),
            );
            let third = now(&mut third).expect("another class has room");
            let mut fourth = Box::pin(
                turns.take((key("shop", "x"), vec![of("repo", 2), of("slow", 1)]), |_| {}),
            );
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
    fn who_waits_is_told_for_whom() {
        block_on(async {
            let turns = Turns::default();
            let said = RefCell::new(Vec::new());
            let tell = |why: &str| said.borrow_mut().push(why.to_owned());
            let wanted = || vec![of("claim db", 1), of("Repository r", 2)];
            let first = turns.take((key("shop", "a"), wanted()), tell).await;
            let mut second = Box::pin(turns.take((key("shop", "b"), wanted()), tell));
            assert!(now(&mut second).is_none());
            let stranger = turns.take((key("other", "f"), wanted()), tell);
            assert!(now(Box::pin(stranger)).is_none());
            let third = turns.take((key("shop", "c"), vec![of("Repository r", 2)]), tell).await;
            let mut fourth =
                Box::pin(turns.take((key("shop", "d"), vec![of("Repository r", 2)]), tell));
            assert!(now(&mut fourth).is_none());
            // Two of one name are two turns.
            let fifth = turns.force((key("shop", "a"), vec![of("Repository r", 2)]));
            drop(first);
            let mut sixth =
                Box::pin(turns.take((key("shop", "e"), vec![of("Repository r", 2)]), tell));
            assert!(now(&mut sixth).is_none());
            assert_eq!(
                *said.borrow(),
                [
                    "it waits for its turn: volumebackup/a in namespace shop is at work on the claim db",
                    "it waits for its turn: the claim db is in use",
                    "it waits for its turn: the Repository r is in use",
                    "it waits for its turn: the Repository r is in use",
                ]
            );
            drop((second, third, fourth, fifth, sixth));
            assert!(turns.0.borrow().taken.is_empty());
        });
    }

    #[test]
    fn whoever_leaves_the_queue_takes_nothing_along() {
        block_on(async {
            let turns = Turns::default();
            let held = turns.take((key("shop", "x"), vec![of("a", 1)]), |_| {}).await;
            let mut admitted = Box::pin(turns.take((key("shop", "x"), vec![of("a", 1)]), |_| {}));
            assert!(now(&mut admitted).is_none());
            let mut waiting = Box::pin(turns.take((key("shop", "x"), vec![of("a", 1)]), |_| {}));
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
            let one = turns.force((key("shop", "x"), vec![of("a", 1)]));
            let two = turns.force((key("shop", "x"), vec![of("a", 1)]));
            let mut next = Box::pin(turns.take((key("shop", "x"), vec![of("a", 1)]), |_| {}));
            drop(one);
            assert!(now(&mut next).is_none(), "there is one too many");
            drop(two);
            assert!(now(&mut next).is_some());
        });
    }
}
