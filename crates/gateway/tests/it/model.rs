//! The protocol of leases as a small model of which every state is visited.
//!
//! Two publishers want directories that overlap. The gateway makes each change of its leases durable and applies it; it may crash
//! between any two steps, and the clock may jump in both directions. The leases are the real ones, and so is every decision.

use esker_gateway::{
    Candidate, Change, Commit, Lease, LeasePath, Leases, Millis, Refused, Request, State, Token,
};
use esker_testkit::state_space::{Explored, Model, explore};

/// Part of the protocol that is left out, to see that the model notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// The gateway does not ask for the lease when the head is replaced.
    NoSecondLook,
    /// The candidate is not noted before the head is replaced.
    NoCandidate,
    /// A change is applied before it is durable, and may never be.
    NotDurable,
    /// After a restart all interrupted commits count as failed.
    NoSearch,
    /// An expired lease whose directory is leased again is not ended for good.
    NotForGood,
    /// The result of a commit is forgotten.
    NoResult,
    /// A lease whose head is being replaced is free once it expires.
    NoHold,
}

const PUBLISHERS: usize = 2;
/// Time that a lease lives, and the times of the clock.
const LIFE: i64 = 2;
const TIMES: std::ops::RangeInclusive<i64> = 1..=5;
const CRASHES: u8 = 2;

/// A publisher, and the thread of the gateway that carries out its commit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    /// It has no lease.
    Idle,
    /// It has a lease, and may ask for the commit as often as it gets no answer.
    Leased,
    /// The thread has begun.
    Begun,
    /// The thread has noted what the head is about to name.
    Noted,
    /// The head names the changes.
    Replaced,
    /// The publisher was told that its changes are published.
    Accepted,
    /// The publisher was told that they are not, and gave up.
    Refused,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    now: i64,
    /// Leases in memory, and in the database.
    memory: Leases,
    disk: Leases,
    /// Publishers whose changes the head names, in their order.
    head: Vec<usize>,
    steps: [Step; PUBLISHERS],
    crashes: u8,
    fault: Option<&'static str>,
}

struct Protocol {
    fault: Fault,
    jumps: bool,
}

fn token(publisher: usize) -> Token {
    Token::named(["one", "two"][publisher])
}

fn request(publisher: usize) -> Request {
    Request { new_root: publisher.to_string(), ..Request::default() }
}

fn lease(publisher: usize, now: i64) -> Lease {
    Lease {
        key: "k".into(),
        path: LeasePath::parse(["r.test/a", "r.test/a/b"][publisher]).unwrap(),
        hostname: String::new(),
        protocol: 3,
        expires: Millis(now + LIFE),
        state: State::Open,
    }
}

impl World {
    /// Makes changes durable and applies them.
    fn change(&mut self, protocol: &Protocol, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            if protocol.fault != Fault::NotDurable {
                self.disk.apply(change.clone());
            }
            self.memory.apply(change);
        }
    }

    /// Finds out after a restart how commits ended.
    fn settle(&mut self, protocol: &Protocol) {
        let committing: Vec<(Token, Option<u64>)> = self
            .memory
            .committing()
            .map(|(token, _, candidate)| (token.clone(), candidate.map(|candidate| candidate.revision)))
            .collect();
        for (token, candidate) in committing {
            let published = candidate
                .filter(|_| protocol.fault != Fault::NoSearch)
                .filter(|number| self.head.contains(&(*number as usize)));
            let change = self.memory.end_commit(&token, published, Millis(self.now));
            self.change(protocol, change);
        }
    }

    fn held(&self) -> Vec<&Lease> {
        self.memory.held(Millis(self.now)).map(|(_, lease)| lease).collect()
    }
}

impl Protocol {
    fn publisher_steps(&self, world: &World, number: usize, next: &mut Vec<(&'static str, World)>) {
        let now = Millis(world.now);
        let mut add = |name, step: Step, change: &dyn Fn(&mut World)| {
            let mut world = world.clone();
            world.steps[number] = step;
            change(&mut world);
            next.push((name, world));
        };
        match world.steps[number] {
            Step::Idle => {
                if let Ok(mut changes) = world.memory.acquire(token(number), lease(number, world.now), now) {
                    if self.fault == Fault::NotForGood {
                        changes.drain(..changes.len() - 1);
                    }
                    add("acquires", Step::Leased, &|world| world.change(self, changes.clone()));
                } else if let Err(Refused::Own(own)) =
                    world.memory.take_over(token(number), lease(number, world.now), &[], now)
                    && let Ok(changes) =
                        world.memory.take_over(token(number), lease(number, world.now), &own, now)
                {
                    add("takes over", Step::Leased, &|world| world.change(self, changes.clone()));
                }
            }
            Step::Leased => match world.memory.begin_commit(&token(number), "k", request(number), now) {
                Ok(Commit::Begin(change)) => {
                    add("begins", Step::Begun, &|world| world.change(self, [change.clone()]));
                }
                Ok(Commit::Done(revision)) => add("is answered again", Step::Accepted, &|world| {
                    if revision != number as u64 {
                        world.fault = Some("a publisher gets the answer of another one");
                    }
                }),
                Err(Refused::Unknown) => add("is refused", Step::Refused, &|_| {}),
                Err(_) => add("is refused for no reason", Step::Refused, &|world| {
                    world.fault = Some("a publisher with one request is refused as if it had two");
                }),
            },
            Step::Begun => {
                let candidate = Candidate { root: String::new(), revision: number as u64 };
                match world.memory.replace_head(&token(number), Some(candidate), now) {
                    _ if self.fault == Fault::NoSecondLook => add("goes on", Step::Noted, &|_| {}),
                    Ok(_) if self.fault == Fault::NoCandidate => add("goes on", Step::Noted, &|_| {}),
                    Ok(change) => add("notes", Step::Noted, &|world| world.change(self, [change.clone()])),
                    Err(_) => add("fails", Step::Refused, &|world| {
                        let change = world.memory.end_commit(&token(number), None, now);
                        world.change(self, change);
                    }),
                }
            }
            Step::Noted => add("replaces the head", Step::Replaced, &|world| {
                if world.head.contains(&number) {
                    world.fault = Some("changes are published twice");
                }
                let path = lease(number, 0).path;
                let mut held = world.memory.held(now).filter(|(_, lease)| lease.path.overlaps(&path));
                if held.next().is_none_or(|(held, _)| *held != token(number)) || held.next().is_some() {
                    world.fault = Some("a publisher replaces the head without a lease");
                }
                world.head.push(number);
            }),
            Step::Replaced => add("is accepted", Step::Accepted, &|world| {
                let change = world.memory.end_commit(&token(number), Some(number as u64), now);
                world.change(self, change);
                if self.fault == Fault::NoResult {
                    world.change(self, [Change::Remove(token(number))]);
                }
                // The answer may get lost on its way.
            }),
            Step::Accepted | Step::Refused => {}
        }
        if world.steps[number] == Step::Replaced {
            add("is accepted, and the answer is lost", Step::Leased, &|world| {
                let change = world.memory.end_commit(&token(number), Some(number as u64), now);
                world.change(self, change);
                if self.fault == Fault::NoResult {
                    world.change(self, [Change::Remove(token(number))]);
                }
            });
        }
    }
}

impl Model for Protocol {
    type State = World;

    fn initial(&self) -> World {
        World {
            now: *TIMES.start(),
            memory: Leases::default(),
            disk: Leases::default(),
            head: Vec::new(),
            steps: [Step::Idle; PUBLISHERS],
            crashes: 0,
            fault: None,
        }
    }

    fn steps(&self, world: &World, next: &mut Vec<(&'static str, World)>) {
        for number in 0..PUBLISHERS {
            self.publisher_steps(world, number, next);
        }
        for (name, now) in [("time passes", world.now + 1), ("the clock jumps back", world.now - 2)] {
            if TIMES.contains(&now) && (self.jumps || now > world.now) {
                let mut world = World { now, ..world.clone() };
                if self.fault == Fault::NoHold {
                    // What is being replaced is free: as if it had no candidate.
                    let change = |leases: &mut Leases| {
                        let freed: Vec<Change> = leases
                            .committing()
                            .filter(|(_, lease, candidate)| {
                                candidate.is_some() && lease.expires <= Millis(now)
                            })
                            .map(|(token, ..)| Change::Remove(token.clone()))
                            .collect();
                        freed.into_iter().for_each(|change| leases.apply(change));
                    };
                    change(&mut world.memory);
                    change(&mut world.disk);
                }
                next.push((name, world));
            }
        }
        if world.crashes < CRASHES {
            let mut world = World { crashes: world.crashes + 1, memory: world.disk.clone(), ..world.clone() };
            for step in &mut world.steps {
                if matches!(step, Step::Begun | Step::Noted | Step::Replaced) {
                    *step = Step::Leased;
                }
            }
            world.settle(self);
            next.push(("the gateway crashes", world));
        }
        let gone = world.memory.expire(Millis(world.now), LIFE * 10);
        if !gone.is_empty() {
            let mut world = world.clone();
            world.change(self, gone);
            next.push(("leases expire", world));
        }
    }

    fn fault(&self, world: &World) -> Option<&'static str> {
        let held = world.held();
        let overlap = held
            .iter()
            .enumerate()
            .any(|(at, one)| held[..at].iter().any(|other| one.path.overlaps(&other.path)));
        let published = |number: &usize| world.head.contains(number);
        let has = |step: Step| (0..PUBLISHERS).filter(move |number| world.steps[*number] == step);
        if world.fault.is_some() {
            world.fault
        } else if overlap {
            Some("two leases of one directory are held")
        } else if !has(Step::Accepted).all(|number| published(&number)) {
            Some("an accepted commit is lost")
        } else if has(Step::Refused).any(|number| published(&number)) {
            Some("a refused commit is published")
        } else {
            None
        }
    }
}

fn explored(fault: Fault, jumps: bool) -> Explored {
    explore(&Protocol { fault, jumps })
}

#[test]
fn no_order_of_steps_loses_a_commit_or_publishes_a_refused_one() {
    for jumps in [false, true] {
        let explored = explored(Fault::None, jumps);
        assert_eq!(explored.fault, None);
        assert!(explored.states > 1000, "{explored:?}");
    }
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    let mut others = Vec::new();
    for (fault, what) in [
        (Fault::NoSecondLook, "a publisher replaces the head without a lease"),
        (Fault::NoCandidate, "a publisher replaces the head without a lease"),
        (Fault::NotDurable, "a refused commit is published"),
        (Fault::NoSearch, "a refused commit is published"),
        (Fault::NotForGood, "two leases of one directory are held"),
        (Fault::NoResult, "a refused commit is published"),
        (Fault::NoHold, "a publisher replaces the head without a lease"),
    ] {
        let explored = explored(fault, true);
        if explored.fault.as_ref().map(|(found, _)| *found) != Some(what) {
            others.push((fault, explored.fault));
        }
    }
    assert!(others.is_empty(), "{others:#?}");
}
