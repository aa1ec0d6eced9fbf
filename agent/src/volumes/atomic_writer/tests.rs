use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::PathBuf,
};

use proptest::prelude::*;

use super::*;

fn payload(files: &[(&str, &str)]) -> VolumeFiles {
    let file = |text: &str| VolumeFile { bytes: text.as_bytes().to_vec(), mode: 0o640, owner: None };
    files.iter().map(|(path, text)| ((*path).to_owned(), file(text))).collect()
}

/// What a reader finds: each file by its path through the links, and its text.
fn read(dir: &Path) -> BTreeMap<String, String> {
    fn walk(dir: &Path, prefix: &str, out: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            if name.starts_with("..") {
                continue;
            } else if entry.path().is_dir() {
                walk(&entry.path(), &format!("{path}/"), out);
            } else {
                out.insert(path, fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(dir, "", &mut out);
    out
}

fn texts(payload: &VolumeFiles) -> BTreeMap<String, String> {
    payload.iter().map(|(path, file)| (path.clone(), String::from_utf8(file.bytes.clone()).unwrap())).collect()
}

fn hidden_names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|n| n.starts_with("..")).collect();
    names.sort();
    names
}

#[test]
fn a_change_is_seen_whole() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &payload(&[("a", "1"), ("d/b", "2")]), None).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "1");
    assert_eq!(fs::read_to_string(dir.path().join("d/b")).unwrap(), "2");
    assert_eq!(fs::metadata(dir.path().join("a")).unwrap().mode() & 0o777, 0o640);
    assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o7777, 0o755);
    let before = fs::read_link(dir.path().join(DATA_LINK)).unwrap();
    write(dir.path(), &payload(&[("a", "1"), ("d/b", "2")]), None).unwrap();
    assert_eq!(fs::read_link(dir.path().join(DATA_LINK)).unwrap(), before, "nothing changed, nothing is turned");
    write(dir.path(), &payload(&[("a", "3")]), None).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "3");
    assert!(!dir.path().join("d").exists());
    let kept = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(kept, 3, "the link, the current folder and one file");
}

#[test]
fn a_file_and_a_folder_may_change_places() {
    let dir = tempfile::tempdir().unwrap();
    for files in [&[("x", "1")][..], &[("x/y", "2"), ("x.z", "3")], &[("x", "4")], &[]] {
        write(dir.path(), &payload(files), None).unwrap();
        assert_eq!(read(dir.path()), texts(&payload(files)));
    }
}

/// A volume next to a folder that it must not touch.
struct Hostile {
    dir: tempfile::TempDir,
}

impl Hostile {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("victim/below")).unwrap();
        fs::write(dir.path().join("victim/kept"), "kept").unwrap();
        fs::write(dir.path().join("victim/below/a"), "1").unwrap();
        fs::create_dir(dir.path().join("volume")).unwrap();
        Self { dir }
    }

    fn volume(&self) -> PathBuf {
        self.dir.path().join("volume")
    }

    fn victim(&self) -> PathBuf {
        self.dir.path().join("victim")
    }

    fn unharmed(&self) {
        let kept = [("below/a", "1"), ("kept", "kept")].map(|(path, text)| (path.to_owned(), text.to_owned()));
        assert_eq!(read(&self.victim()), kept.into());
        assert_eq!(hidden_names(&self.victim()), [""; 0]);
    }
}

#[test]
fn a_link_in_the_place_of_the_current_folder_leads_nowhere() {
    for target in
        ["../victim", "../../../../../../../..", "/", "victim", "..", ".", "..1/../../victim", "..12/.", "none"]
    {
        let world = Hostile::new();
        let target = target.replace("/victim", &world.victim().to_string_lossy());
        write(&world.volume(), &payload(&[("a", "1")]), None).unwrap();
        fs::remove_file(world.volume().join(DATA_LINK)).unwrap();
        symlink(&target, world.volume().join(DATA_LINK)).unwrap();
        let files = payload(&[("a", "2")]);
        write(&world.volume(), &files, None).unwrap();
        assert_eq!(read(&world.volume()), texts(&files), "{target}");
        assert_eq!(hidden_names(&world.volume()).len(), 2, "the link and one folder");
        world.unharmed();
    }
}

#[test]
fn what_only_looks_like_the_files_is_written_anew() {
    // The right contents, but through links: their targets could change at any time.
    let world = Hostile::new();
    let files = payload(&[("below/a", "1")]);
    let fake = world.volume().join("..7");
    fs::create_dir(&fake).unwrap();
    symlink(world.victim().join("below"), fake.join("below")).unwrap();
    symlink("..7", world.volume().join(DATA_LINK)).unwrap();
    write(&world.volume(), &files, None).unwrap();
    assert!(!fake.exists());
    assert_eq!(read(&world.volume()), texts(&files));
    world.unharmed();
}

#[test]
fn links_in_the_place_of_names_and_of_what_is_made_are_replaced() {
    let world = Hostile::new();
    for name in ["a", "stale", NEW_DATA_LINK, "..99"] {
        symlink(world.victim(), world.volume().join(name)).unwrap();
    }
    fs::create_dir_all(world.volume().join("d/e")).unwrap();
    symlink(world.victim(), world.volume().join("d/e/out")).unwrap();
    let files = payload(&[("a", "1"), ("d", "2")]);
    write(&world.volume(), &files, None).unwrap();
    assert_eq!(read(&world.volume()), texts(&files));
    assert_eq!(fs::read_dir(world.volume()).unwrap().count(), 4);
    world.unharmed();
}

#[test]
fn a_folder_in_the_place_of_the_link_goes() {
    let world = Hostile::new();
    fs::create_dir_all(world.volume().join(DATA_LINK).join("x")).unwrap();
    symlink(world.victim(), world.volume().join(DATA_LINK).join("x/out")).unwrap();
    fs::create_dir_all(world.volume().join(NEW_DATA_LINK)).unwrap();
    write(&world.volume(), &payload(&[("a", "1")]), None).unwrap();
    assert_eq!(read(&world.volume()), texts(&payload(&[("a", "1")])));
    world.unharmed();
}

#[test]
fn a_volume_that_is_a_link_is_refused() {
    let world = Hostile::new();
    let link = world.dir.path().join("link");
    symlink(world.victim(), &link).unwrap();
    assert!(write(&link, &payload(&[("a", "1")]), None).is_err());
    world.unharmed();
}

#[test]
fn what_a_crash_left_is_collected() {
    let dir = tempfile::tempdir().unwrap();
    let files = payload(&[("a", "1"), ("b", "2")]);
    write(dir.path(), &files, None).unwrap();
    // Died while it wrote, and while it turned the link, and before all names were there.
    fs::create_dir(dir.path().join("..1")).unwrap();
    fs::write(dir.path().join("..1/half"), "").unwrap();
    symlink("..1", dir.path().join(NEW_DATA_LINK)).unwrap();
    fs::remove_file(dir.path().join("b")).unwrap();
    let before = fs::read_link(dir.path().join(DATA_LINK)).unwrap();
    write(dir.path(), &files, None).unwrap();
    assert_eq!(fs::read_link(dir.path().join(DATA_LINK)).unwrap(), before);
    assert_eq!(hidden_names(dir.path()).len(), 2);
    assert_eq!(read(dir.path()), texts(&files));
}

#[test]
fn only_our_own_stamps_are_stamps() {
    for (name, is) in [("..1", true), ("..1795416487", true), ("..", false), ("..data", false), ("..1a", false)] {
        assert_eq!(is_timestamped(OsStr::new(name)), is, "{name}");
    }
    for other in ["...", "1", "../1", "..1/2", "..-1", ""] {
        assert!(!is_timestamped(OsStr::new(other)), "{other}");
    }
}

/// What somebody who may write to a volume can put there.
#[derive(Debug, Clone)]
enum Trick {
    Folder(String),
    File(String),
    Link(String, String),
    Remove(String),
}

fn trick() -> impl Strategy<Value = Trick> {
    let name = prop::sample::select(vec!["a", "b", "d", "..data", "..data_tmp", "..1", "..2", "..x", "kept", "below"]);
    let path = prop::collection::vec(name, 1..4).prop_map(|parts| parts.join("/"));
    let targets = ["../victim", "../../victim", "..", "/", ".", "..1", "..data", "a", "../victim/below", "VICTIM"];
    (0..4_u8, path, prop::sample::select(targets.to_vec())).prop_map(|(kind, path, target)| match kind {
        0 => Trick::Folder(path),
        1 => Trick::File(path),
        2 => Trick::Link(path, target.to_owned()),
        _ => Trick::Remove(path),
    })
}

/// Plays a trick as a container would, which sees nothing but the volume.
fn play(world: &Hostile, trick: &Trick) {
    let root = dirfd::open_root(&world.volume()).unwrap();
    let parent_is_inside =
        |path: &str| path.rsplit_once('/').is_none_or(|(parent, _)| dirfd::open_dir(&root, parent).is_ok());
    let at = |path: &str| world.volume().join(path);
    match trick {
        Trick::Folder(path) if parent_is_inside(path) => drop(fs::create_dir(at(path))),
        Trick::File(path) if parent_is_inside(path) => {
            drop(fs::OpenOptions::new().write(true).create_new(true).open(at(path)));
        }
        Trick::Link(path, target) if parent_is_inside(path) => {
            let target = target.replace("VICTIM", &world.victim().to_string_lossy());
            drop(symlink(target, at(path)));
        }
        Trick::Remove(path) if parent_is_inside(path) => {
            let _ = fs::remove_file(at(path)).or_else(|_| fs::remove_dir(at(path)));
        }
        _ => {}
    }
}

fn files() -> impl Strategy<Value = VolumeFiles> {
    let path = prop::sample::select(vec!["a", "b/c", "b/d", "d/e/f", "kept", "below/a", "x"]);
    prop::collection::btree_map(path, "[ab]{0,3}", 0..4)
        .prop_map(|files| payload(&files.iter().map(|(path, text)| (*path, text.as_str())).collect::<Vec<_>>()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn whatever_is_put_there_only_the_volume_changes(
        rounds in prop::collection::vec((files(), prop::collection::vec(trick(), 0..8)), 1..4)
    ) {
        let world = Hostile::new();
        for (files, tricks) in rounds {
            for trick in &tricks {
                play(&world, trick);
            }
            write(&world.volume(), &files, None).unwrap();
            prop_assert_eq!(read(&world.volume()), texts(&files));
            world.unharmed();
            let current = fs::read_link(world.volume().join(DATA_LINK)).unwrap();
            prop_assert!(is_timestamped(current.as_os_str()));
        }
    }
}
