//! What cannot be read, or not any more.

use super::*;

/// Replaces a file by a directory, which can be opened but not read, as a file whose read fails.
fn break_file(path: &Path) {
    fs::remove_file(path).unwrap();
    fs::create_dir(path).unwrap();
}

#[test]
fn a_file_that_cannot_be_read_fails_the_whole_sample() {
    for tree in [Tree::Hybrid, Tree::V2] {
        let names: &[(&str, &str)] = match tree {
            Tree::V2 => &[
                ("memory", "memory.current"),
                ("memory", "memory.stat"),
                ("memory", "memory.events"),
                ("blkio", "io.stat"),
                ("pids", "pids.current"),
                ("memory", "memory.swap.current"),
            ],
            _ => &[
                ("memory", "memory.usage_in_bytes"),
                ("memory", "memory.stat"),
                ("memory", "memory.oom_control"),
                ("pids", "pids.current"),
                ("blkio", "blkio.throttle.io_service_bytes_recursive"),
            ],
        };
        for (controller, name) in names {
            let dir = unpack(tree);
            let layout = cgroups(dir.path()).unwrap();
            let (files, ..) = read(dir.path(), &target());
            let group = match tree {
                Tree::V2 => layout.v2_dir(&files.cgroup),
                _ => layout.v1_dir(controller, &files.cgroup),
            };
            break_file(&under(dir.path(), &group.unwrap()).join(name));
            let mut buffer = Buffer::new();
            let mut files = ContainerFiles::open(dir.path(), &layout, &target(), &mut buffer).unwrap();
            let mut sample = Sample::empty(Moment::ZERO);
            let result = files.read(true, &Totals::default(), &mut buffer, &mut sample);
            assert!(matches!(result, Err(SourceError::Read { .. })), "{tree:?} {name}: {result:?}");
        }
    }
}

#[test]
fn a_controller_that_is_enabled_later_is_read() {
    let dir = unpack(Tree::V2);
    let (files, first, _) = read(dir.path(), &target());
    let group = under(dir.path(), &cgroups(dir.path()).unwrap().v2_dir(&files.cgroup).unwrap());
    let names = ["memory.current", "memory.stat", "io.stat"];
    let texts = names.map(|name| fs::read(group.join(name)).unwrap());
    names.iter().for_each(|name| fs::remove_file(group.join(name)).unwrap());
    let (mut files, without, _) = read(dir.path(), &target());
    assert_eq!((without.memory, without.block.len()), (None, 0));
    for (name, text) in names.iter().zip(texts) {
        fs::write(group.join(name), text).unwrap();
    }
    let mut buffer = Buffer::new();
    files.slow(dir.path(), &mut buffer).unwrap();
    let mut sample = Sample::empty(Moment::ZERO);
    files.read(true, &Totals::default(), &mut buffer, &mut sample).unwrap();
    assert_eq!((sample.memory, &sample.block), (first.memory, &first.block));
}

#[test]
fn descriptors_are_counted_or_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let processes: Vec<PathBuf> = ["1", "2"].iter().map(|pid| dir.path().join(pid)).collect();
    for process in &processes {
        fs::create_dir_all(process.join("fd")).unwrap();
        for (name, to) in [("0", "/dev/null"), ("1", "socket:[77]"), ("2", "socket:[78]")] {
            std::os::unix::fs::symlink(to, process.join("fd").join(name)).unwrap();
        }
    }
    // The size of a directory of a disk counts bytes; only procfs has the number of descriptors there.
    let count = |max_entries, max_links| {
        let counted = |_: &Path| 0;
        container::descriptors(processes.iter().cloned(), counted, max_entries, max_links)
    };
    assert_eq!(count(100, 100), (Some(6), Some(4)));
    assert_eq!(count(4, 100), (None, None));
    let counted = |_: &Path| 3;
    let found = container::descriptors(processes.iter().cloned(), counted, 100, 3);
    assert_eq!(found, (Some(6), None), "newer kernels tell the number of files, not of sockets");
}

/// A container with its own network namespace can create as many interfaces as it wants.
#[test]
fn interfaces_beyond_a_number_are_cut() {
    let dir = unpack(Tree::V2);
    let head = "Inter-|   Receive  |  Transmit\n face |bytes |bytes\n";
    let line = |at: usize| format!("  eth{at}: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n");
    let text = (0..500).map(line).fold(head.to_owned(), |text, line| text + &line);
    fs::write(dir.path().join("proc/4242/net/dev"), text).unwrap();
    let sandbox = Target { container_name: "POD".to_owned(), ..target() };
    let (files, sample, _) = read(dir.path(), &sandbox);
    assert_eq!((sample.network.len(), files.cut), (128, true));
    assert!(!read(dir.path(), &target()).0.cut);
}

#[test]
fn a_machine_that_cannot_be_read_is_an_error() {
    for name in ["stat", "meminfo", "vmstat"] {
        let dir = unpack(Tree::V2);
        break_file(&dir.path().join("proc").join(name));
        let files = MachineFiles::open(dir.path(), None);
        let mut buffer = Buffer::new();
        let totals = files.totals(&mut buffer);
        assert!(files.read(&totals, &mut buffer, Sample::empty(Moment::ZERO)).is_err(), "{name}");
    }
}
