use std::collections::BTreeMap;

use super::{
    machine::{Cgroups, MachineFacts},
    *,
};

fn good() -> MachineFacts {
    let sysctls = [
        ("net/ipv4/ip_forward", "1"),
        ("fs/inotify/max_user_instances", "128"),
        ("fs/inotify/max_user_watches", "65536"),
        ("kernel/pid_max", "4194304"),
    ];
    MachineFacts {
        programs: vec!["bash".into(), "dockerd".into()],
        sysctls: sysctls.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        swaps: 0,
        disk: Some((50, 100)),
        inodes: Some((50, 100)),
        node_ip_is_loopback: false,
        clock_synchronized: Some(true),
        cgroups: Cgroups { version: 2, ..Cgroups::default() },
    }
}

fn sysctl(name: &str, value: &str) -> BTreeMap<String, String> {
    let mut all = good().sysctls;
    all.insert(name.to_owned(), value.to_owned());
    all
}

#[test]
fn a_good_machine_is_fine_and_each_flaw_is_told_once() {
    assert!(machine::findings(&good()).iter().all(|f| f.status == Status::Pass));
    for (facts, what, status) in [
        (MachineFacts { disk: Some((9, 100)), ..good() }, "disk", Status::Warn),
        (MachineFacts { inodes: Some((4, 100)), ..good() }, "inodes", Status::Warn),
        (MachineFacts { swaps: 1, ..good() }, "swap", Status::Warn),
        (MachineFacts { programs: vec!["kubelet".into()], ..good() }, "other programs: kubelet", Status::Warn),
        (MachineFacts { programs: vec!["ufw".into()], ..good() }, "other programs: ufw", Status::Warn),
        (MachineFacts { sysctls: sysctl("net/ipv4/ip_forward", ""), ..good() }, "forwarding", Status::Fail),
        (MachineFacts { sysctls: sysctl("kernel/pid_max", "4096"), ..good() }, "kernel.pid_max", Status::Warn),
        (MachineFacts { clock_synchronized: Some(false), ..good() }, "clock", Status::Warn),
        (MachineFacts { clock_synchronized: None, ..good() }, "clock", Status::Warn),
        (
            MachineFacts { clock_synchronized: Some(false), programs: vec!["chronyd".into()], ..good() },
            "clock",
            Status::Warn,
        ),
        (
            MachineFacts { cgroups: Cgroups { missing: vec!["pids".into()], ..Cgroups::default() }, ..good() },
            "cgroup controllers",
            Status::Warn,
        ),
        (
            MachineFacts { cgroups: Cgroups { refused: Some("read-only".into()), ..Cgroups::default() }, ..good() },
            "cgroup controllers",
            Status::Fail,
        ),
        (MachineFacts { node_ip_is_loopback: true, ..good() }, "the node's address", Status::Warn),
    ] {
        let bad: Vec<Finding> = machine::findings(&facts).into_iter().filter(|f| f.status != Status::Pass).collect();
        assert_eq!(bad.len(), 1, "{bad:?}");
        assert!(bad[0].what == what && bad[0].status == status && !bad[0].advice.is_empty(), "{bad:?}");
    }
    // The state is unknown, but a daemon runs.
    let kept = MachineFacts { clock_synchronized: None, programs: vec!["systemd-timesyn".into()], ..good() };
    assert!(machine::findings(&kept).iter().all(|f| f.status == Status::Pass));
    // Some file systems have no fixed number of inodes.
    assert!(
        machine::findings(&MachineFacts { inodes: Some((0, 0)), ..good() }).iter().all(|f| f.status == Status::Pass)
    );
}

#[test]
fn a_port_that_windlass_itself_holds_is_fine() {
    let address: SocketAddr = "127.0.0.1:6443".parse().unwrap();
    assert_eq!(port_finding("the API", address, None).status, Status::Pass);
    assert_eq!(port_finding("the API", address, Some("process 7 (windlass) holds it".into())).status, Status::Pass);
    let taken = port_finding("the API", address, Some("process 7 (nginx) holds it".into()));
    assert!(taken.status == Status::Fail && taken.seen.contains("nginx"), "{taken:?}");
}

#[test]
fn an_api_that_pods_do_not_reach_is_doubtful() {
    let judged = |text: &str| api_reachability(&text.parse().unwrap());
    assert_eq!(judged("127.0.0.1:6443,192.0.2.1:6443").status, Status::Pass);
    assert_eq!(judged("0.0.0.0:6443").status, Status::Pass);
    let alone = judged("127.0.0.1:6443");
    assert!(alone.status == Status::Warn && alone.advice.contains("apiBindAddress"), "{alone:?}");
}

#[test]
fn the_worst_comes_first() {
    let findings = [Finding::pass("a", "x"), Finding::fail("b", "y", "do this"), Finding::warn("c", "z", "do that")];
    assert_eq!(text(&findings), "missing    b   y -> do this\ndoubtful   c   z -> do that\nok         a   x");
    assert_eq!(verdict(&findings), "this machine cannot be a node yet: 1 missing");
    assert_eq!(verdict(&findings[..1]), "this machine can be a node");
}

#[test]
fn a_docker_that_does_not_start_at_boot_is_told_of() {
    for (unit, socket, told) in [
        ("enabled", "enabled", false),
        // Its first client starts it.
        ("disabled", "enabled", false),
        ("disabled", "disabled", true),
        ("masked", "masked", true),
        ("disabled", "", true),
        // Another one, such as a snap's, or no systemd.
        ("", "", false),
        ("not-found", "not-found", false),
        ("static", "", false),
    ] {
        assert_eq!(docker_at_boot(unit, socket).is_some(), told, "{unit} {socket}");
    }
}
