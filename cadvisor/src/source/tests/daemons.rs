//! Processes of daemons and their cgroups.

use super::*;
use crate::config::SystemProcess;

#[test]
fn a_daemon_is_found_with_its_cgroup_and_those_of_shims() {
    let dir = unpack(Tree::V2);
    let root = dir.path();
    fs::create_dir_all(root.join("run")).unwrap();
    fs::write(root.join("run/docker.pid"), "77\n").unwrap();
    for (pid, parent, cgroup) in [(77, 1, "/system.slice/docker.service"), (90, 1, "/system.slice/containerd.service")]
    {
        let process = root.join(format!("proc/{pid}"));
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        fs::write(
            process.join("stat"),
            format!("{pid} (a) b) S {parent} 77 77 0 -1 4 500 0 3 0 120 30 0 0 20 0 9 0 4000 1 250 9"),
        )
        .unwrap();
    }
    // The shim of a container is its parent.
    fs::write(root.join("proc/4242/stat"), "4242 (sh) S 90 1 1 0 -1 4 5 0 0 0 1 3 0 0 20 0 1 0 4000 1 250 9").unwrap();
    let (layout, mut buffer) = (cgroups(root).unwrap(), Buffer::new());
    let runtime = SystemProcess { name: "runtime".to_owned(), pid_file: Some("/run/docker.pid".into()) };
    let pid = daemon_pid(root, &runtime, &mut buffer).unwrap();
    assert_eq!(cgroup_of(root, &layout, pid, &mut buffer).as_deref(), Some("/system.slice/docker.service"));
    let shim = parent_pid(root, 4242, &mut buffer).unwrap();
    assert_eq!(cgroup_of(root, &layout, shim, &mut buffer).as_deref(), Some("/system.slice/containerd.service"));
    let row = daemon(root, &runtime, jiff::Timestamp::UNIX_EPOCH, Moment::ZERO, &mut buffer).unwrap();
    assert_eq!(row.memory.unwrap().rss_bytes, 250 * procfs::page_size());
    fs::remove_file(root.join("run/docker.pid")).unwrap();
    assert!(daemon(root, &runtime, jiff::Timestamp::UNIX_EPOCH, Moment::ZERO, &mut buffer).is_err());
}
