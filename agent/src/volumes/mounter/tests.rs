use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use nix::mount::{MsFlags, mount, umount};

use super::{super::atomic_writer::VolumeFile, *};

/// The pod directories of a node; unmounted when dropped.
struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn volume_dir(&self, pod: &str, plugin: &'static str) -> VolumeDir {
        VolumeDir { pod: self.0.path().join("pods").join(pod), plugin, volume: "v".to_owned() }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for mounted in mountinfo::mounts_below(self.0.path()).unwrap_or_default() {
            let _ = umount2(&mounted, MntFlags::MNT_DETACH);
        }
    }
}

fn place(mounter: &Mounter) -> Result<MountSource, String> {
    match mounter.prepare(&Call::default())? {
        SetUp::Done(place) => Ok(place),
        SetUp::Fetch => Err("something is to be fetched".to_owned()),
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn tmpfs(at: &Path, options: &str) {
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
}

fn files(volume_dir: VolumeDir, in_memory: bool, text: &str) -> Mounter {
    let file = VolumeFile { bytes: text.as_bytes().to_vec(), mode: 0o644, owner: None };
    Mounter::Files { volume_dir, in_memory, payload: [("a".to_owned(), file)].into(), group: None }
}

#[test]
fn an_empty_dir_belongs_to_its_pod_once_it_is_set_up() {
    let node = Node::new();
    for (pod, medium) in [("disk", Medium::Disk), ("memory", Medium::Memory)] {
        let volume_dir = node.volume_dir(pod, "empty-dir");
        // A crash left a directory that is not ready.
        mount::make_dir(&volume_dir.dir()).unwrap();
        let mounter =
            Mounter::EmptyDir { volume_dir: volume_dir.clone(), medium, size: Some(1 << 20), group: Some(4242) };
        let made = place(&mounter).unwrap();
        assert_eq!((made.path.clone(), made.read_only), (volume_dir.dir(), false));
        assert_eq!((mode(&made.path), fs::metadata(&made.path).unwrap().gid()), (0o2777, 4242));
        // What the application made of it stays as it is when the agent comes back.
        chmod(&made.path, 0o700);
        fs::write(made.path.join("kept"), "").unwrap();
        assert_eq!(place(&mounter).unwrap(), made);
        assert_eq!((mode(&made.path), made.path.join("kept").exists()), (0o700, true), "{pod}");
        tear_down(&volume_dir.pod, &Call::default()).unwrap();
        assert_eq!(fs::read_dir(&volume_dir.pod).unwrap().count(), 0, "neither files nor marks are left");
        // Of the next pod, or of this one after its volumes were cleared, nothing is taken for ready.
        assert_eq!(mode(&place(&mounter).unwrap().path), 0o2777);
    }
    let plain = Mounter::EmptyDir {
        volume_dir: node.volume_dir("p", "empty-dir"),
        medium: Medium::Disk,
        size: None,
        group: None,
    };
    assert_eq!(mode(&place(&plain).unwrap().path), 0o777);
}

#[test]
fn an_empty_dir_that_was_not_finished_is_set_up_again() {
    let node = Node::new();
    let volume_dir = node.volume_dir("p", "empty-dir");
    let mounter =
        Mounter::EmptyDir { volume_dir: volume_dir.clone(), medium: Medium::Memory, size: None, group: Some(4242) };
    place(&mounter).unwrap();
    umount(&volume_dir.dir()).unwrap();
    assert!(!is_mounted(&volume_dir.dir()));
    place(&mounter).unwrap();
    assert!(is_mounted(&volume_dir.dir()) && mode(&volume_dir.dir()) == 0o2777);
}

#[test]
fn a_local_volume_is_given_to_the_group_once() {
    let node = Node::new();
    let path = node.0.path().join("data");
    fs::create_dir(&path).unwrap();
    let of = |pod: &str, read_only| Mounter::Local {
        volume_dir: node.volume_dir(pod, "local-volume"),
        path: path.clone(),
        read_only,
        group: Some(4242),
        on_root_mismatch: false,
    };
    assert!(place(&of("reader", true)).unwrap().read_only);
    assert_ne!(fs::metadata(&path).unwrap().gid(), 4242, "who only reads changes nothing");
    tear_down(&node.volume_dir("reader", "").pod, &Call::default()).unwrap();
    place(&of("first", false)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().gid(), 4242);
    // A restart of the agent, and a second pod alongside the first.
    chmod(&path, 0o700);
    place(&of("first", false)).unwrap();
    place(&of("second", false)).unwrap();
    assert_eq!(mode(&path), 0o700);
    for pod in ["first", "second"] {
        tear_down(&node.volume_dir(pod, "").pod, &Call::default()).unwrap();
    }
    place(&of("third", false)).unwrap();
    assert_eq!(mode(&path), 0o2770);
    fs::remove_dir_all(&path).unwrap();
    assert!(place(&of("third", false)).unwrap_err().contains("does not exist"));
}

#[test]
fn the_root_of_an_export_is_the_servers() {
    let node = Node::new();
    let volume_dir = node.volume_dir("p", "nfs");
    let source = NFSVolumeSource { server: "s".to_owned(), path: "/".to_owned(), read_only: None };
    let mounter = Mounter::Nfs { volume_dir: volume_dir.clone(), source, options: Vec::new(), read_only: false };
    assert!(
        place(&mounter).unwrap_err().contains("fetched"),
        "the mount point is made, the rest is asked of the helper"
    );
    // A server's export has its own modes.
    tmpfs(&volume_dir.dir(), "mode=0777,gid=4242");
    let made = place(&mounter).unwrap();
    assert_eq!(
        (made.path, mode(&volume_dir.dir()), fs::metadata(volume_dir.dir()).unwrap().gid()),
        (volume_dir.dir(), 0o777, 4242)
    );
    fs::write(volume_dir.dir().join("kept"), "").unwrap();
    place(&mounter).unwrap();
    assert_eq!(mode(&volume_dir.dir()), 0o777);
    tear_down(&volume_dir.pod, &Call::default()).unwrap();
    assert!(!volume_dir.dir().exists());
}

#[test]
fn files_are_read_only_and_stay_when_nothing_changed() {
    let node = Node::new();
    for (pod, in_memory) in [("disk", false), ("memory", true)] {
        let volume_dir = node.volume_dir(pod, "secret");
        let made = place(&files(volume_dir.clone(), in_memory, "one")).unwrap();
        assert!(made.read_only);
        assert_eq!((mode(&made.path), is_mounted(&made.path)), (0o755, in_memory));
        let current = fs::read_link(made.path.join("..data")).unwrap();
        place(&files(volume_dir.clone(), in_memory, "one")).unwrap();
        assert_eq!(fs::read_link(made.path.join("..data")).unwrap(), current);
        place(&files(volume_dir.clone(), in_memory, "two")).unwrap();
        assert_eq!(fs::read_to_string(made.path.join("a")).unwrap(), "two");
        tear_down(&volume_dir.pod, &Call::default()).unwrap();
        assert!(!volume_dir.dir().exists());
    }
}

/// A node that is taken down keeps what pods have on its disk, and nothing in memory; the next start sets up what is missing.
#[test]
fn what_is_unmounted_leaves_memory_and_is_set_up_again() {
    let node = Node::new();
    let secret = files(node.volume_dir("p", "secret"), true, "planted");
    let scratch = |plugin_of: &str, medium| Mounter::EmptyDir {
        volume_dir: node.volume_dir(plugin_of, "empty-dir"),
        medium,
        size: None,
        group: None,
    };
    let (disk, memory) = (scratch("p", Medium::Disk), scratch("q", Medium::Memory));
    let made = place(&secret).unwrap().path;
    let (on_disk, in_memory) = (place(&disk).unwrap().path.join("kept"), place(&memory).unwrap().path.join("gone"));
    fs::write(&on_disk, "kept").unwrap();
    fs::write(&in_memory, "gone").unwrap();
    let pods = node.0.path().join("pods");
    assert_eq!(super::super::Volumes::end_all(&pods, false), Vec::<String>::new());
    assert_eq!(mountinfo::mounts_below(node.0.path()).unwrap(), Vec::<PathBuf>::new());
    assert!(!made.join("a").exists() && !in_memory.exists());
    assert_eq!(fs::read_to_string(&on_disk).unwrap(), "kept");
    for volume in [&secret, &disk, &memory] {
        place(volume).unwrap();
    }
    assert_eq!(fs::read_to_string(made.join("a")).unwrap(), "planted");
    assert!(on_disk.exists() && is_mounted(&made) && is_mounted(in_memory.parent().unwrap()));
    assert_eq!(super::super::Volumes::end_all(&pods, true), Vec::<String>::new());
    assert!(!made.exists() && !on_disk.exists());
    assert_eq!(super::super::Volumes::end_all(&pods.join("none"), false), Vec::<String>::new());
}

#[test]
fn an_image_is_unpacked_once() {
    let node = Node::new();
    let volume_dir = node.volume_dir("p", "image");
    let of = |id: &str| Mounter::Image { volume_dir: volume_dir.clone(), id: id.to_owned() };
    assert!(place(&of("1")).is_err(), "its files are to be fetched");
    fs::write(volume_dir.files().join("half"), "").unwrap();
    // Died in the middle.
    assert!(place(&of("1")).is_err());
    assert!(!volume_dir.files().join("half").exists());
    fs::write(volume_dir.files().join("whole"), "").unwrap();
    of("1").unpacked(Timestamp::now()).unwrap();
    let made = place(&of("1")).unwrap();
    assert!(made.read_only && made.path.join("whole").exists());
    assert!(place(&of("2")).is_err(), "another image");
}

#[test]
fn a_cancelled_call_sets_up_nothing() {
    let node = Node::new();
    let volume_dir = node.volume_dir("p", "empty-dir");
    let mounter = Mounter::EmptyDir { volume_dir: volume_dir.clone(), medium: Medium::Disk, size: None, group: None };
    let call = Call::default();
    call.cancel();
    assert!(mounter.prepare(&call).is_err());
    assert!(!volume_dir.pod.exists());
}

#[test]
fn what_volumes_lead_to_stays_when_they_are_taken_down() {
    let node = Node::new();
    let (pod, host) = (node.volume_dir("p", "").pod, node.0.path().join("host"));
    fs::create_dir_all(&host).unwrap();
    fs::write(host.join("kept"), "kept").unwrap();
    // A part that is bound, memory with a mount in it, and a link that somebody made.
    let part = pod.join("volume-subpaths/v/c/0");
    mount::make_dir(&part).unwrap();
    let none: Option<&str> = None;
    mount(Some(&host), &part, none, MsFlags::MS_BIND, none).unwrap();
    let memory = pod.join("volumes/kubernetes.io~empty-dir/m");
    mount::make_dir(&memory).unwrap();
    tmpfs(&memory, "mode=0777");
    fs::create_dir(memory.join("below")).unwrap();
    tmpfs(&memory.join("below"), "mode=0777");
    mount::make_dir(&pod.join("volumes/kubernetes.io~empty-dir/v")).unwrap();
    symlink(&host, pod.join("volumes/kubernetes.io~empty-dir/v/out")).unwrap();
    mount::make_dir(&pod.join("containers/c")).unwrap();
    tear_down(&pod, &Call::default()).unwrap();
    assert_eq!(fs::read_to_string(host.join("kept")).unwrap(), "kept");
    let left: Vec<_> = fs::read_dir(&pod).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["containers"]);
    tear_down(&pod, &Call::default()).unwrap();
    tear_down(&pod.join("none"), &Call::default()).unwrap();
}

#[test]
fn media_are_known_or_refused() {
    for (text, medium) in [
        (None, Medium::Disk),
        (Some(""), Medium::Disk),
        (Some("Memory"), Medium::Memory),
        (Some("HugePages"), Medium::HugePages(None)),
        (Some("HugePages-2Mi"), Medium::HugePages(Some("2Mi".to_owned()))),
    ] {
        assert_eq!(Medium::parse(text), Ok(medium));
    }
    for other in ["memory", "HugePages2Mi", "Tape"] {
        assert!(Medium::parse(Some(other)).unwrap_err().contains("not supported"));
    }
}
