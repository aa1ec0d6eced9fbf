//! Dumps of the conntrack table.

use std::{cell::Cell, net::SocketAddr};

use windlass_proxy::{
    conntrack::{Conntrack, Destination, delete_stale},
    model::Family,
};

use super::net::{Net, enter};

/// Where the entries of the test go to.
const TO: [&str; 5] =
    ["172.30.0.41:53", "172.30.0.41:54", "172.30.0.42:53", "[fd00:172:30::41]:53", "[fd00:172:30::42]:54"];

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The entries that a dump gives, how many the kernel printed for it.
fn dump(family: Family, destinations: &[Destination]) -> (Vec<String>, usize) {
    let printed = Cell::new(0);
    let count = |_: &_| {
        printed.set(printed.get() + 1);
        true
    };
    let flows = Conntrack::open().unwrap().udp(family, destinations, count).unwrap();
    let mut to: Vec<String> = flows.iter().map(|flow| flow.destination.to_string()).collect();
    to.sort();
    (to, printed.get())
}

#[test]
fn the_kernel_prints_only_entries_to_the_destinations_that_are_searched() {
    let net = Net::new();
    for to in TO.map(address) {
        let from = if to.is_ipv4() { "10.0.0.9" } else { "fd00:10::9" };
        net.node_command(&format!(
            "conntrack -I -p udp -s {from} --sport 4000 -d {} --dport {} -t 600",
            to.ip(),
            to.port()
        ));
    }
    net.node_command(
        "conntrack -I -p tcp -s 10.0.0.9 --sport 4000 -d 172.30.0.41 --dport 53 -t 600 --state ESTABLISHED",
    );
    let node = net.node.clone();
    let searched = std::thread::spawn(move || {
        enter(&node);
        let at = |text: &str| Destination::Address(address(text));
        let (four, six) = (Family::V4, Family::V6);
        for (family, destinations, found) in [
            (four, vec![], vec![TO[0], TO[1], TO[2]]),
            (six, vec![], vec![TO[3], TO[4]]),
            (four, vec![at(TO[0])], vec![TO[0]]),
            (four, vec![at("172.30.0.43:53")], vec![]),
            (four, vec![Destination::Port(53)], vec![TO[0], TO[2]]),
            (four, vec![at(TO[1]), Destination::Port(53)], vec![TO[0], TO[1], TO[2]]),
            (six, vec![at(TO[3])], vec![TO[3]]),
            // The kernel cannot filter by IPv6 address.
            (six, vec![at("[fd00:172:30::43]:53")], vec![TO[3]]),
            (six, vec![Destination::Port(54)], vec![TO[4]]),
            // Many are one dump of all.
            (four, (1..=9).map(Destination::Port).collect(), vec![TO[0], TO[1], TO[2]]),
        ] {
            assert_eq!(dump(family, &destinations), (found.iter().map(ToString::to_string).collect(), found.len()));
        }
        // An entry that two searches find is deleted once.
        let both = [at(TO[0]), Destination::Port(53)];
        assert_eq!(delete_stale(four, &both, |flow| flow.destination == address(TO[0])).unwrap(), 1);
        assert_eq!(dump(four, &[]).0, [TO[1], TO[2]]);
    });
    searched.join().unwrap();
}
