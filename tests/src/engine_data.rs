//! Docker's data with the sample images in it, made once and then copied: a copy takes a fraction of a second, where loading the
//! images takes several, in each of some eighty testbeds.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
};

use crate::{Testbed, run, testbed::sample_images};

/// The images that every testbed has.
pub(crate) const IMAGES: [&str; 3] = ["busybox", "nginx", "redis"];
/// What the names of these directories begin with.
const PREFIX: &str = "engine-data-";

/// Copies data with [`IMAGES`] to a directory that does not exist yet. The first caller, of all processes, makes the
/// original; each engine and set of images has a separate one.
///
/// # Panics
/// When it cannot be made, or copied.
pub(crate) fn copy_to(target: &Path) {
    let original = original();
    run("cp", &["-a", "--reflink=auto", "--", &original.to_string_lossy(), &target.to_string_lossy()]);
}

fn original() -> PathBuf {
    let folder = sample_images();
    let place = folder.join(format!("{PREFIX}{:016x}", identity(&folder)));
    let lock = fs::File::create(folder.join("engine-data.lock")).expect("a file can be made");
    // Other processes wait until it is made.
    lock.lock().expect("a file can be locked");
    if !place.exists() {
        for entry in fs::read_dir(&folder).expect("the images").flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        make(&place);
    }
    place
}

/// What the data depends on: the images, the engine, and the file system below, which decides how layers are kept.
fn identity(folder: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    for image in IMAGES {
        let file = folder.join(format!("{image}.id"));
        fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())).hash(&mut hasher);
    }
    run("dockerd", &["--version"]).hash(&mut hasher);
    run("stat", &["--file-system", "--format=%T", &std::env::temp_dir().to_string_lossy()]).hash(&mut hasher);
    hasher.finish()
}

fn make(place: &Path) {
    let testbed = Testbed::without_docker();
    testbed.start_docker();
    IMAGES.into_iter().for_each(|image| testbed.load(image));
    testbed.stop_docker();
    let new = place.with_extension("new");
    run("cp", &["-a", "--", &testbed.docker_data().to_string_lossy(), &new.to_string_lossy()]);
    fs::rename(&new, place).expect("a directory can be renamed");
}
