use std::time::Duration;

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
        let connection = self.table.connections.get_mut(&id).unwrap();
        connection.authenticated = true;
        connection.busy += 1;
        connection.requests += 1;
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
    world.table.connections.get_mut(&2).unwrap().busy = 0;
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
    world.table.connections.get_mut(&1).unwrap().busy = 0;
    assert_eq!(world.admit(1), (Ok(5), Some(address(1))));
}

#[test]
fn strangers_make_room_for_one_another() {
    let mut world = World::new(Limits { connections: 100, per_address: 90, unauthenticated: 2 });
    let known = world.admit(9).0.unwrap();
    world.work(known);
    world.table.connections.get_mut(&known).unwrap().busy = 0;
    assert_eq!(world.admit(1), (Ok(2), None));
    assert_eq!(world.admit(1), (Ok(3), None));
    assert_eq!(world.admit(2), (Ok(4), Some(address(1))));
    assert_eq!(world.ids(), [known, 3, 4]);
}

#[test]
fn a_reserved_place_is_there_whatever_others_do() {
    let open = ConnectionLimit::new("a test of reserved places", LIMITS, ReservedAddresses::default());
    let from = |port| Some(SocketAddr::new(address(1), port));
    let busy = |n: u16| {
        let guard = Arc::new(open.admit("t", from(n)).unwrap());
        let request = guard.request();
        request.authenticated();
        (guard, request)
    };
    let _all: Vec<_> = (0..3).map(busy).collect();
    assert!(open.admit("t", from(7)).is_none());
    let reservation = open.reserved.reserve(from(7).unwrap());
    let own = open.admit("t", from(7)).unwrap();
    assert!(open.admit("t", from(8)).is_none(), "it takes no place of others, and gives none");
    assert!(!own.closed().is_cancelled());
    drop((own, reservation));
    assert!(open.admit("t", from(7)).is_none());
}

#[test]
fn only_authenticated_requests_are_work_and_answers_are_not() {
    let open = ConnectionLimit::new("a test of requests", LIMITS, ReservedAddresses::default());
    let guard = Arc::new(open.admit("t", Some(SocketAddr::new(address(1), 1))).unwrap());
    let state = || {
        let table = open.table();
        let connection = &table.connections[&guard.id];
        (connection.busy, connection.requests, connection.long_running)
    };
    let request = guard.request();
    assert_eq!(state(), (0, 1, 0), "nobody vouches for a stranger");
    request.authenticated();
    request.authenticated();
    assert_eq!(state(), (1, 1, 0));
    request.answered(false);
    assert_eq!(state(), (0, 1, 0), "the rest is for the client to take");
    drop(request);
    assert_eq!(state(), (0, 0, 0));
    let watch = guard.request();
    watch.authenticated();
    watch.answered(true);
    assert_eq!(state(), (1, 1, 1));
    drop(watch);
    assert_eq!(state(), (0, 0, 0));
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
    world.table.connections.get_mut(&ids[3]).unwrap().long_running = 1;
    assert_eq!(world.table.sweep(Instant::now()), []);
    let later = world.now + IDLE_TIMEOUT + WRITE_TIMEOUT;
    assert_eq!(world.table.sweep(later), [(address(1), Reason::Idle), (address(3), Reason::Stalled)]);
    assert_eq!(world.ids(), [ids[1], ids[3]]);
    world.table.connections[&ids[3]].writes.record(&std::task::Poll::Ready(std::io::Result::Ok(())));
    assert_eq!(world.table.connections[&ids[3]].writes.blocked_for(later), None);
}
