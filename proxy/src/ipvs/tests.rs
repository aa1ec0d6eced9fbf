use std::collections::BTreeSet;

use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::{
    model::Family,
    netlink::{nest, nested},
    network_policy::SetKind,
};

/// Runs in a network namespace that ends with the thread.
fn in_own_namespace<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may make namespaces");
        work()
    });
    thread.join().unwrap()
}

fn create(name: &str) {
    ip_sets::create(&mut Netlink::netfilter().unwrap(), name, SetKind::HashIp, Family::V4).unwrap();
}

fn is_there(name: &str) -> bool {
    ip_sets::exists(&mut Netlink::netfilter().unwrap(), name).unwrap()
}

#[test]
fn names_of_both_families_fit_the_kernel() {
    let names: BTreeSet<String> = set_names().collect();
    assert_eq!(names.len(), 2 * SET_NAMES.len());
    assert!(names.iter().all(|name| name.len() <= MAX_SET_NAME_LEN));
    assert!(names.contains("KUBE-6-CLUSTER-IP") && names.contains("KUBE-6-LOAD-BALANCER-SOURCE-CID"), "{names:?}");
}

#[test]
fn sets_of_kube_proxy_go_and_others_stay() {
    let others = ["KUBE-SOMEBODY", "blocklist"];
    in_own_namespace(move || {
        assert_eq!(find_leftovers().unwrap(), []);
        let names: Vec<String> = set_names().collect();
        names.iter().map(String::as_str).chain(others).for_each(create);
        let left = find_leftovers().unwrap();
        assert_eq!(left, names.iter().cloned().map(Leftover::Set).collect::<Vec<_>>());
        left.iter().for_each(|left| left.remove().unwrap());
        assert_eq!(find_leftovers().unwrap(), []);
        assert!(others.iter().all(|name| is_there(name)));
        // Gone already.
        left.iter().for_each(|left| left.remove().unwrap());
    });
}

#[test]
fn a_device_is_known_by_its_kind() {
    let link =
        |kind: &[u8]| nested(&[(IFLA_IFNAME, b"kube-ipvs0\0"), (IFLA_LINKINFO, &nested(&[(IFLA_INFO_KIND, kind)]))]);
    assert_eq!(kind(&link(b"dummy")), Some(DEVICE_KIND));
    assert_eq!(kind(&link(b"bridge\0")), Some("bridge"));
    assert_eq!(kind(&nested(&[(IFLA_IFNAME, b"eth0\0")])), None);
    in_own_namespace(|| {
        assert!(!has_device().unwrap());
        assert!(Leftover::Device.remove().is_ok(), "there is none");
        // RTM_NEWLINK; a bridge of that name is not kube-proxy's.
        let info = nested(&[(IFLA_INFO_KIND, b"bridge")]);
        let request = Request::raw(16, 0x600 | NLM_F_ACK, &[0; IFINFOMSG_LEN])
            .text(IFLA_IFNAME, DEVICE)
            .attribute(nest(IFLA_LINKINFO), &info);
        Netlink::routing().unwrap().query(vec![request]).unwrap();
        assert!(!has_device().unwrap());
        assert_eq!(find_leftovers().unwrap(), []);
        // The order itself takes a device away, whatever its kind.
        let there = || Netlink::routing().unwrap().query(vec![super::link(RTM_GETLINK, 0)]).is_ok();
        assert!(there());
        Leftover::Device.remove().unwrap();
        assert!(!there());
    });
}

#[test]
fn virtual_services_are_told_from_the_heads_of_their_table() {
    let head = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> \
                RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
    assert!(!has_virtual_service_line(head));
    for line in [
        "TCP  0A600001:01BB rr \n  -> AC120002:192B      Masq    1      0          0\n",
        "UDP  [fd000096000000000000000000000000a]:0035 rr \n",
        "FWM  00000001 wlc \n",
    ] {
        assert!(has_virtual_service_line(&format!("{head}{line}")), "{line}");
    }
}

#[test]
fn families_of_generic_netlink_have_numbers() {
    let mut netlink = Netlink::generic().unwrap();
    assert_eq!(family_id(&mut netlink, "nlctrl").unwrap(), GENL_ID_CTRL);
    assert!(is_absent(&family_id(&mut netlink, "no-such-family").unwrap_err()));
}
