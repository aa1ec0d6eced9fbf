//! `windlass envtest install`: the programs that controller-runtime's envtest looks for in `KUBEBUILDER_ASSETS`.
//!
//! They are scripts that run this program with a subcommand. A link to it that acts by its name would depend on the name that it is
//! started under, a copy would stay behind when windlass is upgraded; a script can be read, and says what is wrong when the program
//! is gone.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use windlass_kit::{atomic_file, disk};

use super::{say, warn};
use crate::envtest::SERVERS;

/// The line by which a script is known as one of ours.
const MARK: &str = "# Written by windlass envtest install.";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Write kube-apiserver, etcd and kubectl to a directory, for KUBEBUILDER_ASSETS
    Install {
        /// The directory
        directory: PathBuf,
    },
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Action::Install { directory } = &args.action;
    let program = std::env::current_exe().context("the path of this program could not be found")?;
    install(directory, &program, find("kubectl").as_deref())?;
    let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.clone());
    say(format!("export KUBEBUILDER_ASSETS={}", quoted(&directory)));
    Ok(ExitCode::SUCCESS)
}

/// Writes all programs, or none when the directory has others under their names.
fn install(directory: &Path, program: &Path, kubectl: Option<&Path>) -> anyhow::Result<()> {
    let failed = |path: &Path| format!("{} could not be written", path.display());
    fs::create_dir_all(directory).with_context(|| failed(directory))?;
    for server in SERVERS {
        let path = directory.join(server);
        anyhow::ensure!(
            is_ours(&path).with_context(|| failed(&path))?,
            "{} is there already and is not of windlass; nothing was written. Name another directory, or move it away",
            path.display()
        );
    }
    for server in SERVERS {
        let path = directory.join(server);
        // At once, since a test may be starting the one that is there.
        atomic_file::write(&path, script(program, server).as_bytes(), 0o755).with_context(|| failed(&path))?;
    }
    let link = directory.join("kubectl");
    // Only tests that run kubectl need it.
    if fs::symlink_metadata(&link).is_ok() {
        return Ok(());
    }
    match kubectl {
        Some(kubectl) => disk::of(directory).symlink(kubectl, &link).with_context(|| failed(&link)),
        None => {
            warn(
                "there is no kubectl on PATH, so tests that run it need another one: run this again once it is installed",
            );
            Ok(())
        }
    }
}

/// Whether a path is free, or has a script of ours.
fn is_ours(path: &Path) -> io::Result<bool> {
    match fs::read(path) {
        Ok(content) => Ok(String::from_utf8_lossy(&content).lines().nth(1).is_some_and(|line| line == MARK)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(fs::symlink_metadata(path).is_err()),
        Err(error) => Err(error),
    }
}

/// The script of a program.
fn script(program: &Path, server: &str) -> String {
    let program = quoted(program);
    format!(
        "#!/bin/sh\n{MARK}\n[ -x {program} ] || {{ echo {program}\" is gone; install windlass, and run: windlass envtest install \
         $(dirname \"$0\")\" >&2; exit 127; }}\nexec {program} envtest {server} \"$@\"\n"
    )
}

/// A path as a word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// A program on PATH.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut candidates = std::env::split_paths(&path).map(|dir| dir.join(program));
    let found = candidates.find(|file| {
        fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    })?;
    fs::canonicalize(found).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: PathBuf) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn programs_are_written_and_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("it's new");
        install(&folder, Path::new("/opt/a b/windlass"), Some(Path::new("/usr/bin/kubectl"))).unwrap();
        assert!(read(folder.join("etcd")).ends_with("exec '/opt/a b/windlass' envtest etcd \"$@\"\n"));
        assert_eq!(fs::metadata(folder.join("kube-apiserver")).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_link(folder.join("kubectl")).unwrap(), Path::new("/usr/bin/kubectl"));
        install(&folder, Path::new("/usr/bin/windlass"), None).unwrap();
        assert!(read(folder.join("etcd")).ends_with("exec '/usr/bin/windlass' envtest etcd \"$@\"\n"));
        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["etcd", "kube-apiserver", "kubectl"]);
    }

    #[test]
    fn programs_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("etcd"), b"\x7fELF\n\xff").unwrap();
        let error = install(dir.path(), Path::new("/w"), None).unwrap_err().to_string();
        assert!(error.contains("etcd is there already and is not of windlass"), "{error}");
        assert!(!dir.path().join("kube-apiserver").exists());
    }

    #[test]
    fn a_script_says_that_its_program_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        install(dir.path(), &dir.path().join("it's gone"), None).unwrap();
        let run = std::process::Command::new(dir.path().join("etcd")).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.code() == Some(127) && said.contains("it's gone is gone; install windlass"), "{run:?}");
    }
}
