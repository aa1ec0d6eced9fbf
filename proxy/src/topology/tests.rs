use super::*;
use crate::model::Hints;

struct E(Endpoint);

fn e(n: u8) -> E {
    E(Endpoint {
        ip: [10, 180, 0, n].into(),
        port: 80,
        ready: true,
        serving: true,
        terminating: false,
        local: false,
        hints: None,
    })
}

impl E {
    fn local(mut self) -> Self {
        self.0.local = true;
        self
    }
    fn terminating(mut self, serving: bool) -> Self {
        (self.0.ready, self.0.serving, self.0.terminating) = (false, serving, true);
        self
    }
    fn unready(mut self) -> Self {
        (self.0.ready, self.0.serving) = (false, false);
        self
    }
    fn zone(mut self, zones: &[&str]) -> Self {
        let hints = self.0.hints.get_or_insert_default();
        hints.zones = zones.iter().map(|z| (*z).into()).collect();
        self
    }
    fn node(mut self, ours: bool) -> Self {
        let hints: &mut Hints = self.0.hints.get_or_insert_default();
        (hints.has_nodes, hints.our_node) = (true, ours);
        self
    }
}

/// Policies as letters: i = internal Local, e = external Local, x = externally accessible.
fn picked(policy: &str, zone: &str, endpoints: Vec<E>) -> (Vec<u8>, Vec<u8>, Vec<u8>, bool) {
    let endpoints: Vec<Endpoint> = endpoints.into_iter().map(|e| e.0).collect();
    let policy = TrafficPolicy {
        internal_local: policy.contains('i'),
        external_local: policy.contains('e'),
        externally_accessible: policy.contains('x'),
        zone,
    };
    let chosen = categorize_endpoints(&endpoints, &policy);
    let name = |list: &[usize]| -> Vec<u8> {
        list.iter()
            .map(|i| match endpoints[*i].ip {
                std::net::IpAddr::V4(ip) => ip.octets()[3],
                std::net::IpAddr::V6(_) => 0,
            })
            .collect()
    };
    (name(&chosen.cluster), name(&chosen.local), name(&chosen.all_reachable), chosen.has_any)
}

#[test]
fn hints_by_zone() {
    let zoned = || vec![e(1).zone(&["a"]), e(2).zone(&["b"]), e(3).zone(&["a", "c"])];
    assert_eq!(picked("", "a", zoned()), (vec![1, 3], vec![], vec![1, 3], true));
    assert_eq!(picked("", "", zoned()).0, [1, 2, 3], "no zone of ours");
    assert_eq!(picked("", "z", zoned()).0, [1, 2, 3], "no endpoint for our zone");
    let mut some = zoned();
    some.push(e(4));
    assert_eq!(picked("", "a", some).0, [1, 2, 3, 4], "one without hint switches hints off");
    let mut some = zoned();
    some.push(e(4).unready());
    assert_eq!(picked("", "a", some).0, [1, 3], "one that is not ready does not");
    let only_unready = vec![e(1).zone(&["a"]).unready(), e(2).zone(&["b"])];
    assert_eq!(picked("", "a", only_unready).0, [2]);
}

#[test]
fn hints_by_node() {
    let both = || vec![e(1).node(true).zone(&["a"]), e(2).node(false).zone(&["a"]), e(3).node(false).zone(&["b"])];
    assert_eq!(picked("", "a", both()).0, [1]);
    let none_here = vec![e(1).node(false).zone(&["a"]), e(2).node(false).zone(&["b"])];
    assert_eq!(picked("", "a", none_here).0, [1], "falls to the zone");
    let partial = vec![e(1).node(true).zone(&["a"]), e(2).zone(&["a"]), e(3).zone(&["b"])];
    assert_eq!(picked("", "a", partial).0, [1, 2], "not all have node hints: the zone decides");
}

#[test]
fn local_policies_ignore_hints_for_their_list() {
    let endpoints = || vec![e(1).zone(&["a"]), e(2).zone(&["b"]).local(), e(3).zone(&["b"])];
    assert_eq!(picked("ex", "a", endpoints()), (vec![1], vec![2], vec![1, 2], true));
    assert_eq!(picked("i", "a", endpoints()), (vec![], vec![2], vec![2], true));
    assert_eq!(picked("e", "a", endpoints()), (vec![1], vec![], vec![1], true), "not externally accessible");
    assert_eq!(picked("ix", "", endpoints()), (vec![1, 2, 3], vec![2], vec![1, 2, 3], true));
}

#[test]
fn terminating_endpoints_are_the_last_resort() {
    let all =
        || vec![e(1).local(), e(2).local(), e(3).local().terminating(true), e(4).local().terminating(false), e(5)];
    assert_eq!(picked("ex", "", all()), (vec![1, 2, 5], vec![1, 2], vec![1, 2, 5], true));
    let local_leaving =
        vec![e(2).local().terminating(true), e(3).local().terminating(true), e(4).local().terminating(false), e(5)];
    assert_eq!(picked("ex", "", local_leaving), (vec![5], vec![2, 3], vec![2, 3, 5], true));
    assert_eq!(picked("ex", "", vec![e(5).terminating(true)]), (vec![5], vec![], vec![5], true));
    assert_eq!(picked("ex", "", vec![e(5).terminating(false), e(6).unready()]), (vec![], vec![], vec![], false));
    let none_ready = vec![e(2).local().terminating(true), e(4).terminating(false), e(5).terminating(true)];
    assert_eq!(picked("", "", none_ready).0, [2, 5]);
    assert_eq!(picked("i", "", vec![e(1)]), (vec![], vec![], vec![], true), "elsewhere only");
    assert_eq!(picked("i", "", vec![]), (vec![], vec![], vec![], false));
}
