//! iptables programs that fail as the real ones do, before the real ones, for threads of a test: they lie over the real
//! ones in a mount namespace of their own, so that what is tested runs them as in production, by their names.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
};

const SCRIPT: &str = include_str!("faulty_iptables.sh");

/// How one restore fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreFault {
    /// The kernel refuses a table.
    Refused,
    /// Another program holds the xtables lock for too long, when it is taken for a table.
    Locked,
    /// The program is killed, or its answer is lost.
    Killed,
}

impl RestoreFault {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Refused, Self::Locked, Self::Killed];

    const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Locked => "locked",
            Self::Killed => "killed",
        }
    }
}

/// The programs, and the directory with their instructions.
#[derive(Debug)]
pub struct FaultyIptables {
    dir: tempfile::TempDir,
    namespace: File,
}

impl FaultyIptables {
    /// Programs that do not fail yet.
    ///
    /// # Panics
    /// Without root, or without the programs: the test has failed.
    #[must_use]
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().to_owned();
        // A thread of its own: the caller's namespace stays what it is.
        let made = std::thread::spawn(move || cover(&at)).join();
        Self { dir, namespace: made.expect("root may make namespaces, and the package iptables is installed") }
    }

    /// Has this thread, and what it starts, use these programs for the rest of its life.
    ///
    /// # Panics
    /// Without root.
    pub fn enter(&self) {
        unshare(CloneFlags::CLONE_FS).expect("a thread may have a directory of its own");
        setns(&self.namespace, CloneFlags::CLONE_NEWNS).expect("root may enter namespaces");
    }

    /// The restore of this number, counted from now on from 0, fails in this way after this number of tables is
    /// committed.
    pub fn fail(&self, number: usize, fault: RestoreFault, tables: usize) {
        self.write("count", "0\n");
        self.write("faults", &format!("{number} {} {tables}\n", fault.name()));
    }

    /// Every restore fails.
    pub fn fail_all(&self, fault: RestoreFault, tables: usize) {
        self.write("count", "0\n");
        self.write("faults", &format!("* {} {tables}\n", fault.name()));
    }

    /// No restore fails by its number any more; returns whether one has.
    ///
    /// # Panics
    /// When the directory is gone.
    #[must_use]
    pub fn struck(&self) -> bool {
        let _ = fs::remove_file(self.path("faults"));
        fs::remove_file(self.path("struck")).is_ok()
    }

    /// Texts with any of these are refused: what comes before the table with such a rule is committed by then.
    pub fn refuse(&self, words: &[&str]) {
        self.lines("refused", words);
    }

    /// A refusal names the line of the COMMIT and not that of the rule.
    pub fn do_not_name(&self) {
        self.write("unnamed", "");
    }

    /// These programs always fail.
    pub fn break_programs(&self, names: &[&str]) {
        self.lines("failing", names);
    }

    /// These programs hang until this is called without them.
    pub fn hang(&self, names: &[&str]) {
        self.lines("hanging", names);
    }

    /// How often a program was run.
    #[must_use]
    pub fn runs(&self, name: &str) -> usize {
        fs::read_to_string(self.path("runs")).unwrap_or_default().lines().filter(|run| *run == name).count()
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn lines(&self, file: &str, lines: &[&str]) {
        let _ = fs::remove_file(self.path(file));
        if !lines.is_empty() {
            self.write(file, &(lines.join("\n") + "\n"));
        }
    }

    /// Replaced as a whole, for the programs read it meanwhile.
    fn write(&self, file: &str, text: &str) {
        let new = self.path(&format!("{file}.new"));
        fs::write(&new, text).expect("the directory is there");
        fs::rename(new, self.path(file)).expect("the directory is there");
    }
}

impl Default for FaultyIptables {
    fn default() -> Self {
        Self::new()
    }
}

/// Lays the script over the programs, in a new mount namespace.
fn cover(dir: &Path) -> File {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
    let script = dir.join("program");
    fs::write(&script, SCRIPT.replace("@DIR@", &dir.display().to_string())).expect("the script");
    assert!(Command::new("chmod").arg("755").arg(&script).status().is_ok_and(|done| done.success()));
    let names = dir.join("bin");
    fs::create_dir(&names).expect("a directory");
    for (number, back_end) in ["nft", "legacy"].into_iter().enumerate() {
        let Ok(found) = which(&format!("iptables-{back_end}-restore")) else { continue };
        let program = fs::canonicalize(found).expect("the program of all names");
        // The real program is where the script finds it, and determines its function by its name.
        let real = dir.join(format!("real{number}"));
        File::create(&real).expect("a file to mount on");
        mount(Some(&program), &real, none, MsFlags::MS_BIND, none).expect("the real program");
        for stem in ["iptables", "ip6tables"] {
            for verb in ["", "-save", "-restore"] {
                let link = |name: String| std::os::unix::fs::symlink(&real, names.join(name));
                link(format!("{stem}-{back_end}{verb}")).expect("a name");
                let plain = which(&format!("{stem}{verb}")).and_then(fs::canonicalize);
                if plain.is_ok_and(|plain| plain == program) {
                    link(format!("{stem}{verb}")).expect("a name");
                }
            }
        }
        mount(Some(&script), &program, none, MsFlags::MS_BIND, none).expect("the script over the program");
    }
    File::open("/proc/thread-self/ns/mnt").expect("the namespace")
}

fn which(name: &str) -> std::io::Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(["/usr/sbin", "/sbin"]);
    let found = dirs.map(|dir| Path::new(dir).join(name)).find(|file| file.exists());
    found.ok_or_else(|| std::io::ErrorKind::NotFound.into())
}
