//! The iptables programs of one back end, either plain or with a recorder in front of the restore programs.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use windlass_tests::Testbed;

pub(crate) struct Programs {
    plain: PathBuf,
    recording: PathBuf,
    records: PathBuf,
    restore: PathBuf,
    namespace: PathBuf,
}

fn find(name: &str) -> anyhow::Result<PathBuf> {
    ["/usr/sbin", "/sbin", "/usr/bin"]
        .iter()
        .map(|d| Path::new(d).join(name))
        .find(|p| p.exists())
        .context(name.to_owned())
}

impl Programs {
    pub(crate) fn new(testbed: &Testbed, nft: bool) -> anyhow::Result<Self> {
        let back_end = if nft { "nft" } else { "legacy" };
        let this = Self {
            plain: testbed.dir().join("bin-plain"),
            recording: testbed.dir().join("bin-recording"),
            records: testbed.dir().join("records"),
            restore: find(&format!("iptables-{back_end}-restore"))?,
            namespace: testbed.namespace(),
        };
        for dir in [&this.plain, &this.recording, &this.records] {
            fs::create_dir_all(dir)?;
        }
        for family in ["iptables", "ip6tables"] {
            for tail in ["", "-save", "-restore"] {
                let real = find(&format!("{family}-{back_end}{tail}"))?;
                let name = format!("{family}{tail}");
                symlink(&real, this.plain.join(&name))?;
                let recorder = this.recording.join(&name);
                if name != "iptables-restore" {
                    symlink(&real, recorder)?;
                    continue;
                }
                // Files are named by time; the input is written to the file and passed to the program.
                let script = format!(
                    "#!/bin/sh\nf={}/$(date +%s%N)\ncat > $f.tmp\nmv $f.tmp $f\nexec {} \"$@\" < $f\n",
                    this.records.display(),
                    real.display()
                );
                fs::write(&recorder, script)?;
                fs::set_permissions(&recorder, fs::Permissions::from_mode(0o755))?;
            }
        }
        Ok(this)
    }

    /// A PATH with only this back end's programs before the rest.
    pub(crate) fn plain(&self) -> String {
        format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.plain.display())
    }

    /// Like [`plain`](Self::plain), with the recorder.
    pub(crate) fn recording(&self) -> String {
        format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.recording.display())
    }

    /// The recorded inputs since the last call, oldest first.
    pub(crate) fn take(&self) -> anyhow::Result<Vec<PathBuf>> {
        let taken = self.records.with_extension("taken");
        fs::create_dir_all(&taken)?;
        let mut files: Vec<PathBuf> = fs::read_dir(&self.records)?.filter_map(|e| e.ok().map(|e| e.path())).collect();
        files.sort();
        let mut out = Vec::new();
        for file in files {
            let to = taken.join(file.file_name().context("a name")?);
            fs::rename(&file, &to)?;
            out.push(to);
        }
        Ok(out)
    }

    /// Runs iptables-restore with one input; returns the duration.
    pub(crate) fn replay(&self, file: &Path) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let output = Command::new("nsenter")
            .arg(format!("--net={}", self.namespace.display()))
            .arg(&self.restore)
            .args(["-w", "5", "--noflush", "--counters"])
            .stdin(fs::File::open(file)?)
            .stderr(Stdio::piped())
            .output()?;
        let took = started.elapsed();
        let printed = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{}: {printed}", file.display());
        Ok(took)
    }

    /// Repeats it, each time with the rules that the input deletes.
    pub(crate) fn replay_again(&self, file: &Path) -> anyhow::Result<Duration> {
        let text = fs::read_to_string(file)?;
        let deleted: String =
            text.lines().filter_map(|l| l.strip_prefix("-X ")).map(|c| format!(":{c} - [0:0]\n")).collect();
        if !deleted.is_empty() {
            let before = file.with_extension("before");
            fs::write(&before, format!("*nat\n{deleted}COMMIT\n"))?;
            self.replay(&before)?;
        }
        self.replay(file)
    }

    /// Empties both tables.
    pub(crate) fn empty(&self) -> anyhow::Result<()> {
        let text = "*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n";
        let file = self.records.with_extension("empty");
        fs::write(&file, text)?;
        let output = Command::new("nsenter")
            .arg(format!("--net={}", self.namespace.display()))
            .arg(&self.restore)
            .stdin(fs::File::open(&file)?)
            .output()?;
        anyhow::ensure!(output.status.success(), "emptying: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}
