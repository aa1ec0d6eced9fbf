//! `windlass top`: once for scripts, and live in a terminal.

use std::io::Read as _;

use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

use crate::dashboard::BUSY;

#[test]
fn top_shows_usage_once_and_live() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let refused = windlass.try_run("top", &["--once"]).unwrap_err().to_string();
    assert!(refused.contains("is windlass up?"), "{refused}");
    let kubectl = windlass.up();
    kubectl.apply(BUSY);
    let busy = eventually(DEFAULT_TIMEOUT, "the busy pod shows", || {
        let output: Value = serde_json::from_str(&windlass.try_run("top", &["containers", "-o", "json"])?)?;
        let items = output["items"].as_array().cloned().unwrap_or_default();
        let busy = items.into_iter().find(|i| i["container"] == "main");
        let busy = busy.ok_or_else(|| anyhow::anyhow!("not yet: {output}"))?;
        anyhow::ensure!(busy["cpuNanoCores"].as_u64() > Some(200_000_000), "{busy}");
        // Rates need two readings each.
        anyhow::ensure!(busy["writeBytesPerSecond"].is_u64(), "{busy}");
        anyhow::ensure!(output["node"]["cpuNanoCores"].as_u64() > Some(200_000_000), "{output}");
        Ok(busy)
    });
    assert_eq!((busy["pod"].as_str(), busy["cpuLimitMilli"].as_u64()), (Some("busy"), Some(400)), "{busy}");
    assert!(busy["memoryBytes"].as_u64() > Some(0), "{busy}");
    let text = windlass.try_run("top", &["--once", "--filter", "busy"]).unwrap();
    assert!(
        text.contains("node node: ") && text.lines().any(|l| l.starts_with("default") && l.contains("Running")),
        "{text}"
    );
    let none = windlass.try_run("top", &["--once", "-n", "elsewhere"]).unwrap();
    assert!(none.contains("nothing runs that fits"), "{none}");
    let refused = windlass.try_run("top", &[]).unwrap_err().to_string();
    assert!(refused.contains("--once"), "{refused}");

    // In a terminal of its own, until q is pressed.
    let live = windlass.command("top");
    let line: Vec<String> = std::iter::once(live.get_program())
        .chain(live.get_args())
        .map(|a| format!("'{}'", a.to_string_lossy()))
        .collect();
    let mut script = std::process::Command::new("script");
    script
        .args(["-qefc", &format!("stty rows 40 cols 160; {}", line.join(" ")), "/dev/null"])
        .env("TERM", "xterm-256color");
    let mut shown =
        script.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().expect("script");
    let mut keys = shown.stdin.take().expect("piped above");
    std::thread::sleep(std::time::Duration::from_secs(5));
    std::io::Write::write_all(&mut keys, b"q").expect("a key can be pressed");
    let mut screen = String::new();
    shown.stdout.take().expect("piped above").read_to_string(&mut screen).expect("the screen is text");
    assert!(shown.wait().expect("top ends").success(), "{screen}");
    assert!(screen.contains("NAMESPACE") && screen.contains("busy") && screen.contains("/s"), "{screen}");
}
