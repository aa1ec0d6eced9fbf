//! The scripts of `tests/clients`, with the packages that `scripts/python.sh` has installed.

use std::{path::Path, process::Command};

use crate::server::Server;

/// The scripts, without `_client.py`.
pub(crate) const CLIENTS: [&str; 3] = ["official", "kr8s", "lightkube"];

/// Lets a program in Python find the packages.
pub(crate) fn with_packages(command: &mut Command) {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/python");
    assert!(packages.is_dir(), "{} is missing: run `scripts/install.sh test`", packages.display());
    command.env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
}

pub(crate) fn every_type(server: &Server, client: &str) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let objects = server.objects(client);
    let file = server.testbed.dir().join(format!("{client}.json"));
    std::fs::write(&file, serde_json::to_vec(&objects).expect("objects are JSON")).expect("a file can be written");

    let mut command: Command = server.testbed.command("python3");
    command.arg(here.join(format!("clients/{client}_client.py"))).arg(server.testbed.windlass().kubeconfig()).arg(file);
    with_packages(&mut command);
    let output = command.output().expect("python3 starts");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(told.lines().last(), Some(format!("{} types", objects.len()).as_str()));
}
