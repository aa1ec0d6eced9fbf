//! The proxy as a process: what it tells and what it costs.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use nix::sys::signal::Signal;
use windlass_tests::{Daemon, Windlass, World};

/// A cold load of the largest cluster ends before.
const PATIENCE: Duration = Duration::from_secs(900);

pub(crate) struct Proxy {
    daemon: Daemon,
}

/// What the process has used so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// Of its own threads.
    pub(crate) cpu: Duration,
    /// Programs that it ran and that ended, told by the pages they touched: some, or none.
    pub(crate) children: u64,
}

/// The time since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Usage {
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self { cpu: self.cpu.saturating_sub(before.cpu), children: self.children - before.children }
    }
}

impl Proxy {
    pub(crate) fn start(world: &World, windlass: &Windlass<'_>, path: &str, layout: &str) -> anyhow::Result<Self> {
        let mut command = windlass.command("proxy");
        command.arg("--kubeconfig").arg(windlass.kubeconfig()).args(["--rules-layout", layout]);
        command.env("PATH", path).env("WINDLASS_LOG", "warn");
        Ok(Self { daemon: Daemon::start("windlass proxy", &mut command, &world.dir().join("proxy.log"))? })
    }

    fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let mut stream = TcpStream::connect("127.0.0.1:10249")?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        let line = page.lines().find(|l| l.starts_with(name) && l.contains("IPv4")).with_context(|| name.to_owned())?;
        Ok(line.rsplit(' ').next().context("a value")?.parse()?)
    }

    fn wait(
        &mut self,
        what: &str,
        pause: Duration,
        mut done: impl FnMut(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        while !done(self).unwrap_or(false) {
            anyhow::ensure!(self.daemon.runs(), "the proxy ended: {}", self.daemon.log());
            anyhow::ensure!(started.elapsed() < PATIENCE, "{what}: {}", self.daemon.log());
            std::thread::sleep(pause);
        }
        Ok(())
    }

    /// Waits until all rules are in the kernel.
    pub(crate) fn wait_for_full(&mut self) -> anyhow::Result<()> {
        self.wait("the first write", Duration::from_millis(20), |p| {
            Ok(p.metric("kubeproxy_sync_full_proxy_rules_duration_seconds_count")? >= 1.0)
        })
    }

    /// Writes so far.
    pub(crate) fn syncs(&self) -> anyhow::Result<u64> {
        Ok(self.metric("kubeproxy_sync_proxy_rules_duration_seconds_count")? as u64)
    }

    /// When rules were last in order, since 1970.
    fn written_at(&self) -> anyhow::Result<Duration> {
        Ok(Duration::try_from_secs_f64(self.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds")?)?)
    }

    /// Waits until something was written after a moment; how long after. The proxy itself tells when, so that it
    /// need not be asked meanwhile, which would cost it as much as the write.
    pub(crate) fn written_after(&mut self, moment: Duration) -> anyhow::Result<Duration> {
        self.wait("a write", Duration::from_millis(100), |p| Ok(p.written_at()? > moment))?;
        Ok(self.written_at()? - moment)
    }

    /// Waits until nothing is written any more.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        let mut last = u64::MAX;
        loop {
            let now = self.syncs()?;
            if now == last {
                return Ok(());
            }
            last = now;
            std::thread::sleep(Duration::from_secs(4));
        }
    }

    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        let pid = self.daemon.pid();
        // The clock of the whole process: it counts threads that have ended too.
        let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(i32::try_from(pid)?))?;
        let used = nix::time::clock_gettime(clock)?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields: Vec<&str> = stat.rsplit(')').next().context("stat")?.split_whitespace().collect();
        // proc(5): cminflt is field 11, the ninth behind the name's bracket.
        Ok(Usage { cpu: Duration::from(used), children: fields.get(8).context("cminflt")?.parse()? })
    }

    /// In megabytes.
    pub(crate) fn resident(&self) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon.pid()))?;
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).context("VmRSS")?;
        Ok(line.split_whitespace().nth(1).context("a number")?.parse::<f64>()? / 1024.0)
    }

    /// Ends it once all rules are in the kernel.
    pub(crate) fn stop_when_full(mut self) -> anyhow::Result<()> {
        self.wait_for_full()?;
        self.stop();
        Ok(())
    }

    pub(crate) fn stop(mut self) {
        self.daemon.end(Signal::SIGTERM);
    }
}
