//! `make storm`: 200 Deployments on hollow nodes are changed at random for two minutes while the control plane is killed
//! five times; then all must converge. `STORM_SEED=` repeats one.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

use std::time::{Duration, SystemTime};

use windlass_tests::{Storm, Testbed};

fn main() -> anyhow::Result<()> {
    let seed = match std::env::var("STORM_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs(),
    };
    println!("STORM_SEED={seed}");
    let storm = Storm { deployments: 200, time: Duration::from_secs(120), kills: 5, seed };
    let testbed = Testbed::without_docker();
    let weather = storm.run(&testbed)?;
    let changes: usize = weather.changes.values().sum();
    println!("{changes} changes: {:?}", weather.changes);
    println!(
        "{} Deployments with {} pods had converged {:.1} s after the last change; open files before and after: {:?}",
        storm.deployments,
        weather.pods,
        weather.converged.as_secs_f64(),
        weather.files
    );
    Ok(())
}
