//! `bench-api compile`: what it takes to build the program again after a field was added to one kind.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::sys::resource::{UsageWho, getrusage};
use windlass_bench::median;

const ROUNDS: usize = 3;
/// The table that has the fields of pods; a field is a line of it.
const TABLE: &str = "control/apiserver/src/kinds/types/core_v1.tsv";
/// The line before the new field.
const TYPE: &str = "\nContainerPort\n";

/// Restores a file when dropped.
struct Changed {
    path: PathBuf,
    before: String,
}

impl Drop for Changed {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.before);
    }
}

fn children_cpu() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let of = |time: nix::sys::time::TimeVal| {
        Duration::new(u64::try_from(time.tv_sec()).unwrap_or(0), 1000 * u32::try_from(time.tv_usec()).unwrap_or(0))
    };
    Ok(of(usage.user_time()) + of(usage.system_time()))
}

/// The quick build, as `make run` does it.
fn build(root: &Path) -> anyhow::Result<()> {
    let status = Command::new(root.join("scripts/build.sh")).env("PROFILE", "dev").status()?;
    anyhow::ensure!(status.success(), "the build ended with {status}");
    Ok(())
}

/// Adds a field to a type and builds, several times; prints lines for docs/performance.md. The directory of the build is that of
/// the environment (`CARGO_TARGET_DIR`), so that it can be one that is warm.
pub(crate) fn measure() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the root of the repository")?;
    let path = root.join(TABLE);
    let before = fs::read_to_string(&path).with_context(|| TABLE.to_owned())?;
    anyhow::ensure!(before.contains(TYPE), "{TABLE} has no type {}", TYPE.trim());
    build(root)?;
    let changed = Changed { path, before };
    let (mut walls, mut cpus) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let field = format!("{TYPE}\tbenchField{round}\tstring\t{}\n", 900 + round);
        fs::write(&changed.path, changed.before.replacen(TYPE, &field, 1))?;
        let (started, cpu) = (Instant::now(), children_cpu()?);
        build(root)?;
        walls.push(started.elapsed().as_secs_f64());
        cpus.push((children_cpu()? - cpu).as_secs_f64());
    }
    println!("| figure | windlass | promise |");
    println!("|---|---|---|");
    println!(
        "| a field added to one kind, built again (median of {ROUNDS}): wall clock | {:.1} s | ≤ 30 s |",
        median(walls)
    );
    println!("| — CPU time | {:.1} s | |", median(cpus));
    Ok(())
}
