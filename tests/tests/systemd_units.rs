//! The units in `systemd/`: systemd accepts them, their exposure is as documented, and their configuration is
//! the program's default.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd").join(name)
}

/// The outputs of a program.
fn output_of(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).env("SYSTEMD_COLORS", "0").output().expect(program);
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The exposure level that systemd computes, in tenths; the limit keeps it from growing unnoticed. The node's is above
/// 4.0: it may have no mount namespace of its own, since Docker must see its volume mounts.
#[test]
fn units_are_no_more_exposed_than_they_say() {
    for (unit, most) in [("windlass.service", 53), ("windlass-proxy.service", 28)] {
        let path = file(unit).display().to_string();
        let text = output_of("systemd-analyze", &["security", "--offline=true", "--no-pager", &path]);
        let level = text.lines().find_map(|l| l.split_once("exposure level for")).map(|(_, rest)| rest.to_owned());
        let number = level.as_deref().and_then(|l| l.split_once(": ")?.1.split(' ').next()?.parse::<f64>().ok());
        let number = number.unwrap_or_else(|| panic!("no exposure level: {text}"));
        assert!(number * 10.0 <= f64::from(most) + 0.01, "{unit} is at {number}:\n{text}");
    }
}

#[test]
fn systemd_knows_every_setting_of_the_units() {
    for unit in ["windlass.service", "windlass-proxy.service"] {
        let text = output_of("systemd-analyze", &["verify", "--man=no", &file(unit).display().to_string()]);
        // The program is not installed at the unit's path.
        let other: Vec<&str> = text.lines().filter(|l| !l.contains("is not executable")).collect();
        assert!(other.is_empty(), "{unit}: {text}");
    }
}

#[test]
fn the_shipped_configuration_is_the_programs_own() {
    let named = std::env::var("WINDLASS_BIN");
    let program = named.unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../target/debug/windlass").to_owned());
    let shipped = std::fs::read_to_string(file("config.yaml")).expect("systemd/config.yaml");
    let own = output_of(&program, &["config", "default"]);
    assert_eq!(shipped, own, "write it again: windlass config default >systemd/config.yaml");
    let judged = output_of(&program, &["config", "check", &file("config.yaml").display().to_string()]);
    assert!(judged.contains("can be used"), "{judged}");
}

/// A node runs alongside Docker but does not control it: a stopped Docker stays stopped when the unit restarts, and
/// stopping Docker does not stop the unit.
#[test]
fn the_node_comes_after_docker_and_does_not_start_it() {
    let unit = std::fs::read_to_string(file("windlass.service")).expect("windlass.service");
    let of = |names: &[&str]| -> Vec<&str> {
        let lines = unit.lines().filter_map(|line| line.split_once('='));
        let values = lines.filter(|(name, _)| names.contains(name)).map(|(_, value)| value);
        values.flat_map(str::split_whitespace).filter(|other| other.starts_with("docker.")).collect()
    };
    assert_eq!(of(&["After"]), ["docker.service"]);
    let ties = ["Wants", "Requires", "Requisite", "BindsTo", "PartOf", "Upholds", "Also", "WantedBy", "RequiredBy"];
    assert_eq!(of(&ties), Vec::<&str>::new());
}
