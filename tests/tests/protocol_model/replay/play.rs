//! Following recorded requests as a path of the model.
//!
//! For each run of the recording there are actors of the model: what they are to do (which packs,
//! which parent, what is rewritten) is read off the recording, *what comes when* is the model's.
//! Each request must be a step that one of the run's actors can do now, or a look that is a part
//! of a step. Every object that a request finds or lists must be there in the model, and every
//! one that it does not must not. What is created must say the same: condemned lists and verdicts
//! are compared.

mod wanted;

use super::names::{Names, Object, RealPlace};
use super::record::Request;
use crate::collector::CollectorSpec;
use crate::steps::{Op, Step};
use crate::store::{ENTRIES, Key, LEASES, NONE, Packs, Places, Store, bits, places_of};
use crate::world::{ACTORS, Action, Actor, Spec, State, World};
use crate::writer::{BESIDE, WRITER_PACKS, WriterSpec};
use chunkstore::format::names::{
    AttemptName, GcObject, parse_forgotten_key, parse_gc_key, parse_lease_key, parse_manifest_key,
    parse_pack_key,
};
use chunkstore::testkit::Verb;
use chunkstore::{
    PackId, PackKind, Repository,
    format::{Condemned, Lease, LeaseRole, Verdict},
    ids::{GenerationId, LeaseId},
    pack::decode_pack_header,
};
use std::collections::{BTreeMap, BTreeSet};
use wanted::{Where, answer_fits, clocks, wanted};

/// What is known when all runs have ended.
pub(super) struct Recording<'a> {
    pub(super) repo: &'a Repository,
    pub(super) requests: &'a [Request],
    /// What each backup that was ever committed refers to.
    pub(super) maps: &'a BTreeMap<AttemptName, BTreeSet<RealPlace>>,
}

/// What was followed.
#[derive(Debug, Default)]
pub(super) struct Played {
    pub(super) steps: u64,
    pub(super) kinds: BTreeSet<Step>,
    /// Looks that are a part of a step.
    pub(super) parts: u64,
}

/// The state between two acts.
pub(super) struct Stage<'a> {
    recording: Recording<'a>,
    names: Names,
    store: Store,
    /// Leases that only ask the store for its time.
    clocks: BTreeSet<LeaseId>,
    pub(super) played: Played,
}

/// The actors of one act, and whose they are.
struct Act {
    world: World,
    state: State,
    of_run: Vec<usize>,
    /// Packs and stubs that a reader has asked for.
    asked: BTreeSet<(Step, u8)>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(recording: Recording<'a>) -> Self {
        let mut names = Names::default();
        for request in recording.requests {
            let writes = matches!(request.verb, Verb::Put | Verb::Create);
            if let (true, Ok(pack)) = (writes, parse_pack_key(&request.key)) {
                names.pack(&pack);
            }
        }
        for name in recording.maps.keys() {
            names.slot(name);
        }
        names.group(recording.maps);
        let clocks = clocks(recording.requests);
        let (store, played) = (Store::default(), Played::default());
        Self { recording, names, store, clocks, played }
    }

    /// A pack of chunks is lost.
    pub(super) fn lose(&mut self, pack: &PackId) {
        let lost = self.names.pack(pack);
        self.store.packs &= !(1 << lost);
        self.store.bad |= places_of(lost);
    }

    /// The next act: these runs, whose requests may alternate. `ends`: whether all of them came
    /// to their end.
    pub(super) fn act(&mut self, runs: &[usize], ends: bool) {
        let mut specs: Vec<Spec> = vec![Spec::Idle; ACTORS];
        let mut of_run = vec![usize::MAX; ACTORS];
        for run in runs {
            for spec in self.specs(*run, &specs) {
                let at = self.free_actor(&specs);
                specs[at] = spec;
                of_run[at] = *run;
                self.name_leases(*run, at, &spec);
            }
        }
        let mut world = World::new(self.store, specs);
        (world.any_order, world.fences_max) = (true, u8::MAX);
        let state = world.start();
        let mut act = Act { world, state, of_run, asked: BTreeSet::new() };
        act.state.store.fenced = 0;
        let requests = self.recording.requests;
        for (n, request) in requests.iter().enumerate().filter(|(_, r)| runs.contains(&r.run)) {
            self.follow(&mut act, request, n);
        }
        for (actor, spec) in act.state.actors.iter().zip(&act.world.actors) {
            let may_stay = !ends || matches!(spec, Spec::Undertaker(_));
            let ended = [Step::Ended, Step::WaitForBlocker].contains(&actor.pc());
            assert!(ended || may_stay, "{spec:?} did not end: {}", actor.pc().words());
        }
        self.store = act.state.store;
        assert!(self.store.backups_are_whole() && self.store.promises_are_kept());
    }

    fn of(&self, run: usize) -> impl Iterator<Item = &'a Request> + use<'a> {
        self.recording.requests.iter().filter(move |r| r.run == run)
    }

    /// An actor whose leases nobody has.
    fn free_actor(&self, specs: &[Spec]) -> usize {
        let free = |at: &usize| {
            let leases = 0b11 << (2 * at);
            specs[*at] == Spec::Idle && self.store.leases & leases == 0
        };
        (0..ACTORS).find(free).expect("the model has room for all of them")
    }

    fn name_leases(&mut self, run: usize, at: usize, spec: &Spec) {
        if !matches!(spec, Spec::Writer(_) | Spec::Reader(_) | Spec::Collector(_)) {
            return;
        }
        let first = u8::try_from(2 * at).unwrap();
        for (n, id) in (0..).zip(self.leases_of(run)) {
            self.names.lease(&id, first + n);
        }
    }

    /// Leases that a run has made, clocks apart.
    fn leases_of(&self, run: usize) -> Vec<LeaseId> {
        let made = self.of(run).filter(|r| r.verb == Verb::Create && !r.found);
        let ids = made.filter_map(|r| parse_lease_key(&r.key).ok());
        let mut known = self.clocks.clone();
        // one that was removed right away is made twice
        ids.filter(|id| known.insert(*id)).collect()
    }

    fn lease(&self, request: &Request) -> Lease {
        let repo = self.recording.repo;
        Lease::decode(repo.keys(), repo.id(), &request.key, &request.body).unwrap()
    }

    /// What a run is to do.
    fn specs(&mut self, run: usize, _: &[Spec]) -> Vec<Spec> {
        let wrote = |prefix: &str| {
            let mut of_run = self.of(run);
            of_run.any(|r| r.verb == Verb::Create && r.key.starts_with(prefix))
        };
        if wrote("forgotten/") {
            let mut created = self.of(run).filter(|r| r.verb == Verb::Create);
            let name = created.find_map(|r| parse_forgotten_key(&r.key).ok()).unwrap();
            return vec![Spec::Forget(self.names.slot(&name))];
        }
        let mut put = self.of(run).filter(|r| r.verb == Verb::Put);
        if put.any(|r| r.key.starts_with("damaged/")) {
            // of a pack whose chunks all belong together
            let bad = bits(self.store.bad).next().expect("something was lost");
            return vec![Spec::Recorder(bad)];
        }
        let is_lease = |r: &&Request| {
            matches!(r.verb, Verb::Create | Verb::Put)
                && parse_lease_key(&r.key).is_ok_and(|id| !self.clocks.contains(&id))
        };
        let role = self.of(run).find(is_lease).map(|r| self.lease(r).role);
        match role {
            Some(LeaseRole::Reader { name }) => vec![Spec::Reader(self.names.slot(&name))],
            Some(LeaseRole::Writer { name, parent }) => {
                let parent = parent.map(|p| AttemptName {
                    volume: name.volume.clone(),
                    backup_id: p.backup_id,
                    attempt: p.attempt,
                });
                vec![Spec::Writer(self.writer(run, &name, parent))]
            }
            Some(LeaseRole::Collector { generation }) => self.collector(run, generation),
            None => panic!("run {run} does nothing"),
        }
    }

    fn writer(
        &mut self,
        run: usize,
        name: &AttemptName,
        parent: Option<AttemptName>,
    ) -> WriterSpec {
        // a run that was fenced before it began makes the next attempt
        let attempt = |n| AttemptName { attempt: n, ..name.clone() };
        let mut spec = WriterSpec::new([self.names.slot(&attempt(0)), NONE], [NONE; 3]);
        let taken = |r: &Request| r.verb == Verb::Create && parse_manifest_key(&r.key).is_ok();
        let second = self
            .recording
            .requests
            .iter()
            .any(|r| taken(r) && parse_manifest_key(&r.key).is_ok_and(|n| n == attempt(1)));
        if second {
            spec.attempts[1] = self.names.slot(&attempt(1));
        }
        if let Some(parent) = &parent {
            spec.parents[0] = self.names.slot(parent);
        }
        let known: Vec<LeaseId> = self.leases_of(run);
        let mut own: Packs = 0;
        (spec.packs, spec.passes) = ([NONE; WRITER_PACKS], 0);
        let mut puts = 0;
        let mut reused: Packs = 0;
        for r in self.of(run) {
            let object = self.names.object(&r.key);
            match (r.verb, object) {
                (Verb::Put | Verb::Create, Some(Object::Pack(pack))) => {
                    assert!(puts < WRITER_PACKS, "a run with too many packs");
                    spec.packs[puts] = pack;
                    spec.holds[puts] = self.names.entries(pack).max(1);
                    if decode_pack_header(&r.body).unwrap().kind == PackKind::Pages {
                        spec.pages |= 1 << pack;
                    }
                    own |= 1 << pack;
                    puts += 1;
                }
                (Verb::Head, Some(Object::Pack(pack))) => {
                    reused |= 1 << pack;
                    // a pass without anything new puts no segment
                    spec.passes |= if own & 1 << pack == 0 { 1 << puts } else { 0 };
                }
                (Verb::Put | Verb::Create, None) if r.key.starts_with("dedup/") => {
                    spec.segments |= 1 << puts;
                    spec.passes |= 1 << puts;
                }
                (Verb::Put, _) if parse_lease_key(&r.key).is_ok() => {
                    let id = parse_lease_key(&r.key).unwrap();
                    if !known.contains(&id) && spec.resumes == NONE {
                        spec.resumes = self.names.knows_lease(&id).expect("another run's") / 2;
                    } else {
                        spec.checkpoints += 1;
                    }
                }
                _ => {}
            }
        }
        spec.passes |= 1 << puts;
        let of = |packs: Packs| bits(packs.into()).fold(0, |all: Places, p| all | places_of(p));
        spec.reuses = of(reused & !own);
        let is_named = |at: &u8| self.names.entries(at / ENTRIES) & 1 << (at % ENTRIES) != 0;
        spec.reuses = bits(spec.reuses).filter(is_named).fold(0, |all, at| all | 1 << at);
        let committed = self.recording.maps.iter().filter(|(n, _)| n.backup_id == name.backup_id);
        let refers: Places = committed.fold(0, |all, (_, map)| all | self.names.places(map));
        spec.inherits = refers & !of(own) & !spec.reuses;
        spec
    }

    fn collector(&mut self, run: usize, own: GenerationId) -> Vec<Spec> {
        let mut specs = Vec::new();
        let (mut target, mut rewrites, mut buried) = (NONE, 0, BTreeSet::new());
        let leases = self.leases_of(run);
        let mut swept = BTreeSet::new();
        for r in self.of(run) {
            let gc = parse_gc_key(&r.key).ok();
            match (r.verb, gc) {
                (Verb::Get, Some((g, GcObject::Verdict)))
                | (Verb::Delete, Some((g, GcObject::Blockers))) => {
                    swept.insert(g);
                }
                (Verb::Create, Some((g, GcObject::Condemned))) if g == own => {
                    if let Condemned::List(list) = self.condemned(r) {
                        rewrites = self.names.packs(list.rewritten.iter().map(|m| m.pack()));
                    }
                }
                _ => {}
            }
            if let (Verb::Put | Verb::Create, Some(Object::Pack(pack))) =
                (r.verb, self.names.object(&r.key))
            {
                assert_eq!(target, NONE, "the model copies into one pack");
                target = pack;
            }
            if let (Verb::Delete, Ok(id)) = (r.verb, parse_lease_key(&r.key)) {
                let known = self.names.knows_lease(&id).filter(|_| !leases.contains(&id));
                buried.extend(known);
            }
        }
        swept.remove(&own);
        specs.extend(swept.iter().map(|g| Spec::Sweeper(self.names.generation(g))));
        specs.extend(buried.into_iter().map(Spec::Undertaker));
        let generation = self.names.generation(&own);
        specs.push(Spec::Collector(CollectorSpec { generation, target, rewrites, sweeps: true }));
        specs
    }

    fn condemned(&self, request: &Request) -> Condemned {
        let repo = self.recording.repo;
        Condemned::decode(repo.keys(), repo.id(), &request.key, &request.body).unwrap()
    }

    /// One request: a step of the model, or a part of one.
    fn follow(&mut self, act: &mut Act, request: &Request, n: usize) {
        let what = format!("request {n} of run {}", request.run);
        self.names.check(&act.state.store, request, &what);
        leave_whole(act, request);
        let mut fitting = Vec::new();
        for actor in (0..ACTORS).filter(|at| act.of_run[*at] == request.run) {
            let mut ops = Vec::new();
            act.world.enabled(&act.state, u8::try_from(actor).unwrap(), &mut ops);
            let actor = u8::try_from(actor).unwrap();
            let fits = |op: &Op| self.fits(act, actor, *op, request);
            fitting.extend(ops.into_iter().filter(fits).map(|op| Action { actor, op }));
        }
        let Some(first) = fitting.first().copied() else {
            if !self.is_part(request) {
                let text = self.context(act, n);
                panic!("{what} is no step: {:?} {}\n{text}", request.verb, request.key);
            }
            self.played.parts += 1;
            return;
        };
        // one listing shows a collector all that others have left
        fitting.retain(|a| *a == first || a.op.step == Step::ListGenerations);
        for action in fitting {
            self.step(act, action, request, n);
        }
    }

    fn step(&mut self, act: &mut Act, action: Action, request: &Request, n: usize) {
        act.world.act(&mut act.state, action);
        self.played.steps += 1;
        self.played.kinds.insert(action.op.step);
        match action.op.step {
            Step::CreateCondemned if !request.found => self.same_list(act, action, request),
            Step::CreateVerdict if !request.found => self.same_verdict(act, request),
            Step::PutCheckpoint => self.same_checkpoint(act, request),
            Step::ListSegments => self.forgo(act, action, n),
            Step::ReadPack | Step::ReadStub => {
                act.asked.insert((action.op.step, action.op.on / ENTRIES));
                if request.found && action.op.step == Step::ReadPack {
                    self.read_on(act, action);
                }
            }
            _ => {}
        }
    }

    /// One request reads all that is wanted of a pack, and a stub that was read says where all of
    /// its pack went.
    fn read_on(&mut self, act: &mut Act, action: Action) {
        loop {
            let mut ops = Vec::new();
            act.world.enabled(&act.state, action.actor, &mut ops);
            let was_asked = |op: &&Op| act.asked.contains(&(op.step, op.on / ENTRIES));
            let Some(op) = ops.iter().find(was_asked).copied() else { return };
            act.world.act(&mut act.state, Action { op, ..action });
            self.played.steps += 1;
        }
    }

    /// A writer may reuse less than it could: one of two places of a chunk, for instance.
    fn forgo(&self, act: &mut Act, action: Action, n: usize) {
        let run = act.of_run[usize::from(action.actor)];
        let of_run = self.recording.requests[n + 1..].iter().filter(|r| r.run == run);
        let pass = of_run.take_while(|r| !(r.verb == Verb::List && r.key == "dedup"));
        let heads = pass.filter(|r| r.verb == Verb::Head);
        let packs = heads.fold(0, |all, r| match self.names.object(&r.key) {
            Some(Object::Pack(pack)) => all | 1 << pack,
            _ => all,
        });
        if let Actor::Writer(writer) = &mut act.state.actors[usize::from(action.actor)] {
            writer.reuse_only(packs);
        }
    }

    fn same_list(&self, act: &Act, action: Action, request: &Request) {
        let Condemned::List(real) = self.condemned(request) else { panic!("a fence") };
        let Actor::Collector(c) = &act.state.actors[usize::from(action.actor)] else { panic!() };
        let list = &act.state.store.gens[usize::from(c.generation)].list;
        assert_eq!(list.dead, self.names.packs(&real.dead), "condemned: dead");
        let rewritten = self.names.packs(real.rewritten.iter().map(|m| m.pack()));
        assert_eq!(list.rewritten(), rewritten, "condemned: rewritten");
        assert_eq!(list.forgotten, self.names.slots(&real.forgotten), "condemned: forgotten");
    }

    fn same_verdict(&self, act: &Act, request: &Request) {
        let repo = self.recording.repo;
        let real = Verdict::decode(repo.keys(), repo.id(), &request.key, &request.body).unwrap();
        let Some(Object::Verdict(g)) = self.names.object(&request.key) else { panic!() };
        let verdict = act.state.store.gens[usize::from(g)].verdict;
        assert_eq!(verdict, Some(self.names.packs(&real.dead)), "verdict");
    }

    /// A checkpoint may say less than is stored already: what is on its way.
    fn same_checkpoint(&self, act: &mut Act, request: &Request) {
        let Some(Object::Lease(lease)) = self.names.object(&request.key) else { panic!() };
        let real = self.lease(request).checkpoint.expect("a checkpoint").packs;
        let real = self.names.packs(&real);
        let model = &mut act.state.store.checkpoints[usize::from(lease)];
        let packs = crate::store::packs_of(*model);
        assert_eq!(real & !packs, 0, "the checkpoint names what is not there");
        *model = bits((packs & !real).into()).fold(*model, |all, p| all & !places_of(p));
    }

    /// Where it went wrong.
    fn context(&self, act: &Act, n: usize) -> String {
        let mut text = act.pcs();
        for r in self.recording.requests[..=n].iter().rev().take(25).rev() {
            let object = self.names.object(&r.key);
            text += &format!("\n  run {}: {:?} {} {object:?} {}", r.run, r.verb, r.key, r.found);
        }
        text
    }

    /// Looks that are parts of steps, and what leaves the store as it is.
    fn is_part(&self, request: &Request) -> bool {
        let is_clock = parse_lease_key(&request.key).is_ok_and(|id| self.clocks.contains(&id));
        match request.verb {
            Verb::Get | Verb::Head | Verb::List => true,
            // whether the store has create-once is found out with an object that is there
            Verb::Create => request.found || is_clock,
            Verb::Put | Verb::Copy => false,
            Verb::Delete => !request.found || is_clock || request.key.starts_with("dedup/"),
        }
    }

    /// Whether a request is this step of this actor.
    fn fits(&self, act: &Act, actor: u8, op: Op, r: &Request) -> bool {
        let i = usize::from(actor);
        let wants = wanted(act, i, op);
        let Some((verbs, object)) = wants else { return false };
        match object {
            Where::Object(object) => {
                let at = self.names.key(object).is_some_and(|key| key == r.key);
                at && verbs.contains(&r.verb) && answer_fits(op.step, r)
            }
            Where::Attempts(slot) => {
                let folder = self.names.attempts_of(slot);
                r.verb == Verb::List && folder.is_some_and(|f| f == r.key)
            }
            Where::Prefix(prefix) => {
                let at = if r.verb == Verb::List {
                    r.key == prefix.trim_end_matches('/')
                } else {
                    r.key.starts_with(prefix)
                };
                at && verbs.contains(&r.verb)
            }
        }
    }
}

/// Segments that stay whole are not put together with others: what the model puts then is there
/// already.
fn leave_whole(act: &mut Act, request: &Request) {
    if request.verb != Verb::Delete || !request.key.starts_with("dedup/") {
        return;
    }
    for actor in (0..ACTORS).filter(|at| act.of_run[*at] == request.run) {
        let Actor::Collector(c) = &act.state.actors[actor] else { continue };
        let nothing_new = c.segments.0 & !act.state.store.segments == 0;
        if c.pc == Step::PutMovedSegment && nothing_new {
            let actor = u8::try_from(actor).unwrap();
            act.world.act(&mut act.state, Action { actor, op: Step::PutMovedSegment.into() });
        }
    }
}

impl Act {
    fn pcs(&self) -> String {
        let pc = |(n, actor): (usize, &Actor)| {
            let mut ops = Vec::new();
            self.world.enabled(&self.state, u8::try_from(n).unwrap(), &mut ops);
            let next: Vec<String> =
                ops.iter().map(|op| format!("{} {}", op.step.words(), op.on)).collect();
            format!("[{n}] run {}: {}, {next:?}\n", self.of_run[n], actor.pc().words())
        };
        let of = self.state.actors.iter().enumerate();
        let mut text: String = of.filter(|(n, _)| self.of_run[*n] != usize::MAX).map(pc).collect();
        text += &format!("store: {:?}", self.state.store);
        text
    }
}

const _: () = assert!(2 * ACTORS <= LEASES && BESIDE == 1);
