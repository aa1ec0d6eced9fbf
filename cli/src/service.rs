//! The systemd service that runs Windlass, and the only code that stops, starts and disables it, or ends a running
//! process: a signalled process of a unit with `Restart=always` is restarted two seconds later.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use windlass_kit::atomic_file;

use crate::instance::{self, Instance, Lock};

/// The unit of the packages.
const UNIT: &str = "windlass.service";
/// Its run-time directory, which is that of the settings unless they name another.
const UNIT_RUN_DIR: &str = "/run/windlass";
/// The unit's environment file, whose variable is its command line.
const ENVIRONMENT: &str = "/etc/windlass/windlass.env";
/// Exists if systemd is pid 1.
const SYSTEMD_MARKER: &str = "/run/systemd/system";
/// The time that a running process has to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

fn systemctl(args: &[&str]) -> anyhow::Result<Output> {
    Command::new("systemctl")
        .args(args)
        .output()
        .with_context(|| format!("systemctl {} could not be run", args.join(" ")))
}

/// Runs systemctl; errors include its output.
fn run_systemctl(args: &[&str]) -> anyhow::Result<()> {
    let output = systemctl(args)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "systemctl {} failed: {}", args.join(" "), stderr.trim());
    Ok(())
}

/// Properties of a unit, as `name=value` lines.
fn properties(unit: &str, names: &str) -> String {
    let output = systemctl(&["show", unit, &format!("--property={names}")]);
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// One of them. Pure.
fn property<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
}

/// The service in whose cgroup a process is, by the content of its `/proc/PID/cgroup`. Pure.
fn service_in(cgroup: &str) -> Option<&str> {
    let paths = cgroup.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        // Of the hierarchies, those of systemd.
        (controllers.is_empty() || controllers == "name=systemd").then(|| fields.next()).flatten()
    });
    paths.flat_map(|path| path.rsplit('/')).find(|part| part.ends_with(".service"))
}

/// A service of systemd that runs, or is about to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Service {
    unit: String,
}

impl Service {
    /// The service whose main process this is. One that was started by hand within another service, such as a login, is not
    /// that service's.
    fn of_process(pid: i32) -> Option<Self> {
        if !Path::new(SYSTEMD_MARKER).exists() {
            return None;
        }
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let unit = service_in(&cgroup)?;
        (property(&properties(unit, "MainPID"), "MainPID") == pid.to_string()).then(|| Self { unit: unit.to_owned() })
    }

    /// The packages' service, if it has this run-time directory and is not stopped. Between two starts it has no process.
    fn of_packages(run_dir: &Path) -> Option<Self> {
        if run_dir != Path::new(UNIT_RUN_DIR) || !is_installed() {
            return None;
        }
        let state = properties(UNIT, "ActiveState");
        let is_stopped = matches!(property(&state, "ActiveState"), "" | "inactive" | "failed");
        (!is_stopped).then(|| Self { unit: UNIT.to_owned() })
    }

    /// Stops it, and waits until it has.
    fn stop(&self) -> anyhow::Result<()> {
        run_systemctl(&["stop", &self.unit])
    }

    /// Keeps it from being started at the next boot. Does nothing to one that systemd made itself.
    pub(crate) fn disable(&self) -> anyhow::Result<()> {
        run_systemctl(&["disable", &self.unit])
    }

    /// Its name.
    pub(crate) fn unit(&self) -> &str {
        &self.unit
    }
}

/// An instance that was stopped, whose lock is held now.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) instance: Instance,
    /// The service that ran it, if one did.
    pub(crate) service: Option<Service>,
}

/// Stops whatever runs with a run-time directory, by the service that owns it if there is one, and takes its lock, so that
/// nothing starts again meanwhile.
///
/// # Errors
/// When it could not be stopped; then nothing else was changed.
pub(crate) fn stop(run_dir: &Path) -> anyhow::Result<Stopped> {
    let mut service = Service::of_packages(run_dir);
    if let Some(service) = &service {
        service.stop()?;
    }
    let deadline = Instant::now() + STOP_TIMEOUT;
    let mut signalled = None;
    loop {
        match Instance::try_lock(run_dir)? {
            Lock::Acquired(instance) => return Ok(Stopped { instance, service }),
            Lock::Held(None) => {}
            // It may be ending, or another process has taken the lock.
            Lock::Held(Some(pid)) if !instance::holds_lock(pid, run_dir) => {}
            Lock::Held(Some(pid)) if signalled != Some(pid) => {
                match Service::of_process(pid) {
                    Some(owner) => {
                        owner.stop()?;
                        service = Some(owner);
                    }
                    None => terminate(pid)?,
                }
                signalled = Some(pid);
            }
            Lock::Held(Some(_)) => {}
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "the running windlass (process {}) did not exit within {} s; see its log, or kill it with kill -9 (pods keep running) and retry",
            signalled.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
            STOP_TIMEOUT.as_secs()
        );
        std::thread::sleep(instance::RETRY_INTERVAL);
    }
}

fn terminate(pid: i32) -> anyhow::Result<()> {
    match kill(Pid::from_raw(pid), Signal::SIGTERM) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => {
            Err(errno).with_context(|| format!("the running windlass (process {pid}) could not be signalled"))
        }
    }
}

/// Whether systemd waits for this process to say that it has started, so that its exit code decides what comes next.
pub(crate) fn is_awaited() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Whether systemd runs here and has the packages' unit.
pub(crate) fn is_installed() -> bool {
    Path::new(SYSTEMD_MARKER).exists() && systemctl(&["cat", UNIT]).is_ok_and(|output| output.status.success())
}

/// What systemd says of the start of a unit at boot, such as `enabled`; empty where there is no such unit, or no systemd.
pub(crate) fn enablement(unit: &str) -> String {
    if !Path::new(SYSTEMD_MARKER).exists() {
        return String::new();
    }
    let said = systemctl(&["is-enabled", unit]).map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).trim().to_owned()
}

/// Quotes a word of a command line that is split at blanks.
fn quote(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+<>*".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return Some(text.to_owned());
    }
    // These need escapes within quotes; no setting has them.
    let bad = |c: char| c.is_control() || "'\"\\$`".contains(c);
    (!text.chars().any(bad)).then(|| format!("'{text}'"))
}

/// A command line of arguments; `None` if one cannot be quoted.
pub(crate) fn command_line(args: &[String]) -> Option<String> {
    args.iter().map(|arg| quote(arg)).collect::<Option<Vec<String>>>().map(|words| words.join(" "))
}

/// The environment file that has the unit run a command.
pub(crate) fn environment(args: &[String]) -> Option<String> {
    let command_line = command_line(args)?;
    Some(format!(
        "# What windlass.service runs; written by `windlass join`, removed by `windlass leave`.\nWINDLASS_ARGS=\"{command_line}\"\n"
    ))
}

/// Enables and starts the unit with a command; does not wait for it.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    write_environment(Path::new(ENVIRONMENT), args)?;
    run_systemctl(&["enable", UNIT])?;
    run_systemctl(&["restart", "--no-block", UNIT])
}

/// Has the unit run a command, from its next start on.
pub(crate) fn write_environment(file: &Path, args: &[String]) -> anyhow::Result<()> {
    let text = environment(args)
        .context("one of the flags holds quotes, a dollar sign or a control character, which the unit's file cannot; set it in /etc/windlass/config.yaml instead")?;
    let written = atomic_file::make_dir(file.parent().unwrap_or(Path::new("/etc")), 0o755)
        .and_then(|()| atomic_file::write_durable(file, text.as_bytes(), 0o644));
    written.with_context(|| format!("{} could not be written", file.display()))
}

/// Why the unit failed, if it did.
pub(crate) fn failure() -> Option<String> {
    let text = properties(UNIT, "ActiveState,Result,StatusText");
    let result = property(&text, "Result");
    let failed = !result.is_empty() && result != "success";
    failed.then(|| format!("{UNIT} is {}, {result}", property(&text, "ActiveState")))
}

/// Whether a join has set up the packages' unit.
pub(crate) fn is_of_join() -> bool {
    Path::new(ENVIRONMENT).exists()
}

/// Whether all that a join does for the packages' unit is done, but for its start now.
pub(crate) fn is_set_up() -> bool {
    is_of_join() && enablement(UNIT) == "enabled"
}

/// Keeps a unit that a join has set up from being started at the next boot.
pub(crate) fn disable_join() -> anyhow::Result<()> {
    if is_of_join() && is_installed() { run_systemctl(&["disable", UNIT]) } else { Ok(()) }
}

/// Undoes [`run`] but for the stop, which came first: the unit is not started at the next boot, and runs its default command
/// when somebody starts it. Does nothing if it was not set up by a join.
pub(crate) fn forget_join() -> anyhow::Result<()> {
    if !is_of_join() {
        return Ok(());
    }
    disable_join()?;
    atomic_file::remove(Path::new(ENVIRONMENT)).with_context(|| format!("{ENVIRONMENT} could not be removed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_its_services() {
        for (cgroup, service) in [
            ("0::/system.slice/windlass.service\n", Some("windlass.service")),
            ("0::/system.slice/system-node.slice/node@1.service/init.scope\n", Some("node@1.service")),
            ("12:pids:/a.service\n1:name=systemd:/system.slice/windlass.service\n0::/\n", Some("windlass.service")),
            ("0::/user.slice/user-0.slice/session-3.scope\n", None),
            ("0::/\n", None),
            ("", None),
        ] {
            assert_eq!(service_in(cgroup), service, "{cgroup}");
        }
        // The process running these tests is not a service's main process.
        assert_eq!(Service::of_process(i32::try_from(std::process::id()).unwrap()), None);
        assert_eq!(Service::of_packages(Path::new("/elsewhere")), None);
    }

    #[test]
    fn properties_are_read() {
        let text = "MainPID=12\nActiveState=activating\nResult=success\n";
        assert_eq!(property(text, "MainPID"), "12");
        assert_eq!(property(text, "ActiveState"), "activating");
        assert_eq!(property(text, "Active"), "");
    }

    /// The pid of the lock's file is another process's now, which is not meant.
    #[test]
    fn only_the_process_that_holds_the_lock_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let lock = dir.path().join("windlass.lock");
        fs::write(&lock, format!("{}\n", other.id())).unwrap();
        let stopped = stop(dir.path()).unwrap();
        assert_eq!(stopped.service, None);
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// A process that holds it ends, and its lock is ours.
    #[test]
    fn who_holds_the_lock_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("windlass.lock");
        let script = format!("exec 9<>{0}; flock 9; echo $$ >{0}; echo ready; exec sleep 60", lock.display());
        let mut holder = Command::new("sh").args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 5];
        std::io::Read::read_exact(&mut holder.stdout.take().unwrap(), &mut ready).unwrap();
        let stopped = std::thread::spawn({
            let dir = dir.path().to_owned();
            move || stop(&dir)
        });
        let status = holder.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::SIGTERM as i32));
        stopped.join().unwrap().unwrap();
    }
}
