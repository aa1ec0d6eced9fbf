use std::{net::Ipv4Addr, time::Duration};

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { connections: 4, per_address: 3, unauthenticated: 4 };

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

/// A table and a clock that moves on with each step.
struct World {
    table: Table,
    limits: Limits,
    now: Instant,
}

impl World {
    fn new(limits: Limits) -> Self {
        Self { table: Table::default(), limits, now: Instant::now() }
    }

    fn admit(&mut self, last: u8) -> (Result<u64, Reason>, Option<IpAddr>) {
        self.now += Duration::from_secs(1);
        self.table.admit(self.limits, address(last), false, self.now)
    }

    fn work(&mut self, id: u64) {
        self.table.change(id, self.now, |connection| {
            connection.authenticated = true;
            connection.busy += 1;
            connection.requests += 1;
        });
    }

    /// The work is done, and its answer is the client's to take.
    fn answer(&mut self, id: u64) {
        let at = self.table.get(id).unwrap().last_active;
        self.table.change(id, at, |connection| connection.busy = 0);
    }

    fn ids(&self) -> Vec<u64> {
        self.table.connections.keys().copied().collect()
    }
}

#[test]
fn the_address_with_the_most_loses_its_idlest() {
    let mut world = World::new(LIMITS);
    for last in [1, 2, 2, 3] {
        assert!(matches!(world.admit(last), (Ok(_), None)));
    }
    // The first is older, but alone of its address.
    assert_eq!(world.admit(4), (Ok(5), Some(address(2))));
    assert_eq!(world.ids(), [1, 3, 4, 5]);
}

#[test]
fn what_is_at_work_stays() {
    let mut world = World::new(LIMITS);
    for last in 1..=4 {
        let id = world.admit(last).0.unwrap();
        world.work(id);
    }
    assert_eq!(world.admit(5), (Err(Reason::Full), None));
    world.answer(2);
    assert_eq!(world.admit(5), (Ok(5), Some(address(2))));
}

#[test]
fn an_address_has_its_share() {
    let mut world = World::new(LIMITS);
    for _ in 0..3 {
        let id = world.admit(1).0.unwrap();
        world.work(id);
    }
    assert_eq!(world.admit(1), (Err(Reason::AddressFull), None));
    assert_eq!(world.admit(2), (Ok(4), None));
    world.answer(1);
    assert_eq!(world.admit(1), (Ok(5), Some(address(1))));
}

#[test]
fn strangers_make_room_for_one_another() {
    let mut world = World::new(Limits { connections: 100, per_address: 90, unauthenticated: 2 });
    let known = world.admit(9).0.unwrap();
    world.work(known);
    world.answer(known);
    assert_eq!(world.admit(1), (Ok(2), None));
    assert_eq!(world.admit(1), (Ok(3), None));
    assert_eq!(world.admit(2), (Ok(4), Some(address(1))));
    assert_eq!(world.ids(), [known, 3, 4]);
}

#[test]
fn idle_and_blocked_connections_are_swept() {
    let mut world = World::new(LIMITS);
    let ids: Vec<u64> = (1..=4).map(|last| world.admit(last).0.unwrap()).collect();
    // The second has a request, the third one whose socket takes nothing, the fourth a watch of the same kind.
    for id in &ids[1..] {
        world.work(*id);
    }
    for id in &ids[2..] {
        world.table.connections[id].writes.record(&std::task::Poll::<std::io::Result<()>>::Pending);
    }
    world.table.change(ids[3], world.now, |connection| connection.long_running = 1);
    assert_eq!(world.table.sweep(Instant::now()), []);
    let later = world.now + IDLE_TIMEOUT + WRITE_TIMEOUT;
    assert_eq!(world.table.sweep(later), [(address(1), Reason::Idle), (address(3), Reason::Stalled)]);
    assert_eq!(world.ids(), [ids[1], ids[3]]);
    world.table.connections[&ids[3]].writes.record(&std::task::Poll::Ready(std::io::Result::Ok(())));
    assert_eq!(world.table.connections[&ids[3]].writes.blocked_for(later), None);
}

/// What [`Table`] must decide, by looking at every connection each time.
#[derive(Default)]
struct Plain {
    last_id: u64,
    connections: BTreeMap<u64, (IpAddr, bool, bool, usize, Instant)>,
}

impl Plain {
    fn admit(
        &mut self,
        limits: Limits,
        address: IpAddr,
        reserved: bool,
        now: Instant,
    ) -> (Result<u64, Reason>, Option<IpAddr>) {
        let mut closed = None;
        if !reserved {
            let of_address = self.connections.values().filter(|c| c.0 == address).count();
            let unauthenticated = self.connections.values().filter(|c| !c.2).count();
            let room = if of_address >= limits.per_address {
                self.close_one(|c| c.0 == address).ok_or(Reason::AddressFull).map(Some)
            } else if unauthenticated >= limits.unauthenticated {
                self.close_one(|c| !c.2).ok_or(Reason::Full).map(Some)
            } else if self.connections.len() >= limits.connections {
                self.close_one(|_| true).ok_or(Reason::Full).map(Some)
            } else {
                Ok(None)
            };
            match room {
                Ok(address) => closed = address,
                Err(why) => return (Err(why), None),
            }
        }
        self.last_id += 1;
        self.connections.insert(self.last_id, (address, reserved, reserved, 0, now));
        (Ok(self.last_id), closed)
    }

    fn close_one(&mut self, is_candidate: impl Fn(&(IpAddr, bool, bool, usize, Instant)) -> bool) -> Option<IpAddr> {
        let candidates = || self.connections.iter().filter(|(_, c)| c.3 == 0 && !c.1 && is_candidate(c));
        let mut of_address: HashMap<IpAddr, usize> = HashMap::new();
        for (_, connection) in candidates() {
            *of_address.entry(connection.0).or_default() += 1;
        }
        let (address, _) = of_address.into_iter().max_by_key(|(address, count)| (*count, *address))?;
        let (_, id) = candidates().filter(|(_, c)| c.0 == address).map(|(id, c)| (c.4, *id)).min()?;
        self.connections.remove(&id);
        Some(address)
    }
}

/// What happens to a server; connections are named by their place among those that are open.
#[derive(Debug, Clone)]
enum Step {
    Admit { last: u8, reserved: bool },
    Work(usize),
    Answer(usize),
    Progress(usize),
    End(usize),
    Sweep,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..5_u8, prop::bool::weighted(0.05)).prop_map(|(last, reserved)| Step::Admit { last, reserved }),
        2 => (0..12_usize).prop_map(Step::Work),
        2 => (0..12_usize).prop_map(Step::Answer),
        1 => (0..12_usize).prop_map(Step::Progress),
        1 => (0..12_usize).prop_map(Step::End),
        1 => Just(Step::Sweep),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    /// After any sequence of steps, the table admits, refuses and closes the same clients as a scan of all connections
    /// would; and its counts and orders match the connections.
    #[test]
    fn what_is_sorted_decides_as_looking_at_all(
        all in steps(),
        limits in (1..10_usize, 1..5_usize, 1..6_usize),
        pause in 0..3_u64,
    ) {
        let limits = Limits { connections: limits.0, per_address: limits.1, unauthenticated: limits.2 };
        let (mut table, mut plain, mut now) = (Table::default(), Plain::default(), Instant::now());
        for (turn, step) in all.into_iter().enumerate() {
            // Often several at one time.
            now += Duration::from_secs(if turn % 3 == 0 { pause } else { 0 });
            let open: Vec<u64> = plain.connections.keys().copied().collect();
            let chosen = |place: usize| open.get(place % open.len().max(1)).copied().unwrap_or_default();
            match step {
                Step::Admit { last, reserved } => {
                    let admitted = table.admit(limits, address(last), reserved, now);
                    prop_assert_eq!(admitted, plain.admit(limits, address(last), reserved, now));
                }
                Step::Work(place) => {
                    let id = chosen(place);
                    table.change(id, now, |c| { c.authenticated = true; c.busy += 1; c.requests += 1; });
                    plain.connections.entry(id).and_modify(|c| *c = (c.0, c.1, true, c.3 + 1, now));
                }
                Step::Answer(place) => {
                    let id = chosen(place);
                    table.change(id, now, |c| c.busy = c.busy.saturating_sub(1));
                    plain.connections.entry(id).and_modify(|c| *c = (c.0, c.1, c.2, c.3.saturating_sub(1), now));
                }
                Step::Progress(place) => {
                    let id = chosen(place);
                    table.change(id, now, |_| {});
                    plain.connections.entry(id).and_modify(|c| c.4 = now);
                }
                Step::End(place) => {
                    let id = chosen(place);
                    table.remove(id);
                    plain.connections.remove(&id);
                }
                Step::Sweep => {
                    let later = now + IDLE_TIMEOUT - Duration::from_secs(2);
                    let closed = table.sweep(later);
                    let before = plain.connections.len();
                    plain.connections.retain(|id, _| table.get(*id).is_some());
                    prop_assert_eq!(closed.len(), before - plain.connections.len());
                }
            }
            let ids: Vec<u64> = table.connections.keys().copied().collect();
            prop_assert_eq!(&ids, &plain.connections.keys().copied().collect::<Vec<u64>>());
            let sorted: usize = table.closable.of_address.values().map(BTreeSet::len).sum();
            prop_assert_eq!(sorted, table.connections.values().filter(|c| c.is_closable()).count());
            prop_assert_eq!(table.closable.sizes.len(), table.closable.of_address.len());
            prop_assert_eq!(table.of_address.values().sum::<usize>(), ids.len());
        }
        for id in table.connections.keys().copied().collect::<Vec<u64>>() {
            table.remove(id);
        }
        // Nothing is kept of who is gone.
        prop_assert!(table.of_address.is_empty() && table.closable.sizes.is_empty() && table.closable.of_address.is_empty());
        prop_assert!(table.closable_unauthenticated.sizes.is_empty() && table.unauthenticated == 0);
    }
}
