//! What becomes of servers that do not answer.

use std::{net::SocketAddr, time::Duration};

use hickory_proto::rr::Name;
use tokio::time::Instant;

use super::at;
use crate::forward::{
    health::{Check, Health, Reach},
    plan::{Plan, Step},
};

fn servers() -> [SocketAddr; 3] {
    [at("192.0.2.1:53"), at("192.0.2.2:53"), at("192.0.2.3:53")]
}

/// The probes that are due; the looks for loops are not of interest.
fn probes(health: &mut Health, now: Instant) -> Vec<SocketAddr> {
    let due = health.due(now).0.into_iter();
    due.filter_map(|check| if let Check::Answers(server) = check { Some(server) } else { None }).collect()
}

#[test]
fn who_does_not_answer_is_probed_and_passed_over_until_it_does() {
    let (servers, now) = (servers(), Instant::now());
    let after = |millis: u64| now + Duration::from_millis(millis);
    let mut health = Health::default();
    health.set_servers(&servers, now);
    assert_eq!(probes(&mut health, now), []);
    assert_eq!(health.order(&servers, false), servers);
    health.silent(servers[0], now);
    let last = [servers[1], servers[2], servers[0]];
    assert_eq!(health.order(&servers, false), last);
    for (at, is_down) in [(0, false), (1000, false), (2000, true)] {
        assert_eq!(probes(&mut health, after(at)), [servers[0]]);
        assert_eq!(probes(&mut health, after(at + 900)), [], "one at a time");
        assert_eq!(health.probe_silent(servers[0]), is_down, "{at}");
    }
    // It delays no question any more, unless no other server answers.
    assert_eq!(health.reach(servers[0]), Reach::Down);
    assert_eq!(health.order(&servers, false), last[..2]);
    assert_eq!(health.order(&servers, true), last);
    assert_eq!(health.order(&servers[..1], false), servers[..1]);
    assert_eq!(probes(&mut health, after(3_600_000)), [servers[0]], "for as long as it takes");
    assert!(health.answered(servers[0]));
    assert_eq!(health.order(&servers, false), servers);
    // A probe that ends late says nothing of a server that has answered meanwhile.
    assert!(!health.probe_silent(servers[0]));
    assert_eq!(health.reach(servers[0]), Reach::Good);
}

#[test]
fn tcp_is_apart_from_udp() {
    let (servers, now) = (servers(), Instant::now());
    let after = |seconds: u64| now + Duration::from_secs(seconds);
    let mut health = Health::default();
    health.set_servers(&servers, now);
    assert!(health.may_use_tcp(servers[0], now));
    health.tcp(servers[0], false, now);
    assert_eq!(health.order(&servers, false), servers);
    assert!(!health.may_use_tcp(servers[0], after(9)));
    // One question tries it again, for all.
    assert!(health.may_use_tcp(servers[0], after(10)));
    assert!(!health.may_use_tcp(servers[0], after(10)));
    health.tcp(servers[0], true, after(11));
    assert!(health.may_use_tcp(servers[0], after(11)));
}

#[test]
fn loops_are_looked_for_at_the_start_and_where_they_can_come_later() {
    let (far, own, now) = (at("192.0.2.1:53"), at("127.0.0.1:53"), Instant::now());
    let name = |text: &str| Name::from_ascii(text).unwrap();
    let mut health = Health::default();
    health.set_servers(&[far], now);
    assert_eq!(health.due(now), (vec![Check::Loops(far)], None));
    health.loop_check(far, name("a1."));
    assert!(!health.came_back(&name("b1.")));
    assert_eq!(health.loop_checked(far, true, now), None);
    // It is a new server now.
    health.set_servers(&[own], now);
    let (due, next) = health.due(now);
    assert_eq!(due, [Check::Loops(own)]);
    let again = next.unwrap();
    health.loop_check(own, name("a2."));
    assert!(health.came_back(&name("A2.")));
    assert_eq!(health.loop_checked(own, false, now), Some(true));
    assert!(health.leads_here(own));
    // Silence says nothing, an answer that it is over.
    for (answered, changed) in [(false, None), (true, Some(false))] {
        health.loop_check(own, name("a3."));
        assert_eq!(health.loop_checked(own, answered, now), changed);
    }
    assert_eq!(health.due(again).0, [Check::Loops(own)]);
}

#[test]
fn the_way_of_a_question() {
    let (servers, start) = (servers(), Instant::now());
    let after = |millis: u64| start + Duration::from_millis(millis);
    let mut health = Health::default();
    health.set_servers(&servers[..2], start);
    let mut plan = Plan::new(servers[..2].to_vec(), start);
    let ask = |server: usize, again| Step::Ask { server: servers[server], again };
    for (now, expected) in [
        (0, ask(0, false)),
        (0, Step::Wait(after(400))),
        (400, ask(0, true)),
        (400, Step::Wait(after(1000))),
        (1000, Step::Silent(servers[0])),
        (1000, ask(1, false)),
        (1400, ask(1, true)),
        (2000, Step::Silent(servers[1])),
        // The budget is not spent yet.
        (2000, ask(0, false)),
    ] {
        assert_eq!(plan.step(&mut health, after(now)), expected, "{now}");
    }
    plan.refused_question(servers[0]);
    assert_eq!(plan.step(&mut health, after(2100)), ask(1, false));
    plan.refused_question(servers[1]);
    assert_eq!(plan.step(&mut health, after(2200)), Step::GiveUp);
    assert_eq!(Plan::new(servers.to_vec(), start).step(&mut health, after(4500)), Step::GiveUp);
    // All are down: each has one turn.
    servers.iter().for_each(|server| {
        health.set_servers(&servers, start);
        health.silent(*server, start);
        (0..3).for_each(|_| {
            health.probe_silent(*server);
        });
    });
    let mut plan = Plan::new(vec![servers[0]], start);
    let steps: Vec<Step> = [0, 400, 1000, 1000].map(|now| plan.step(&mut health, after(now))).to_vec();
    assert_eq!(steps, [ask(0, false), ask(0, true), Step::Silent(servers[0]), Step::GiveUp]);
}
