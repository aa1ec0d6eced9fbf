use super::*;

const LIMITS: Limits = Limits { connections: 4, per_address: 3, unauthenticated: 4 };

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
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
        let connection = table.get(guard.id).unwrap();
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
