//! NFS volumes, mounted by the host's `mount.nfs`, which handles versions and options.

use std::{path::Path, time::Duration};

use k8s_openapi::api::core::v1::NFSVolumeSource;
use windlass_kit::external_program::Program;

/// Timeout of a mount.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// The arguments of `mount`. Pure.
///
/// # Errors
/// When the server or the path is not valid: they must not be taken for options.
fn arguments(source: &NFSVolumeSource, options: &[String], read_only: bool) -> Result<Vec<String>, String> {
    let NFSVolumeSource { server, path, .. } = source;
    let name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%' | '[' | ']');
    if server.is_empty() || server.starts_with('-') || !server.chars().all(name) {
        return Err(format!("the nfs server {server:?} is neither a name nor an address"));
    }
    if !path.starts_with('/') || path.contains(char::is_control) {
        return Err(format!("the path {path:?} of the nfs server {server} must be absolute"));
    }
    let host = if server.contains(':') && !server.starts_with('[') { format!("[{server}]") } else { server.clone() };
    let mut all = options.to_vec();
    all.push(if read_only { "ro" } else { "rw" }.to_owned());
    Ok(["-t", "nfs", "-o", &all.join(","), "--", &format!("{host}:{path}")].map(str::to_owned).into())
}

/// Mounts an export.
pub(super) async fn mount(
    dir: &Path,
    source: &NFSVolumeSource,
    options: &[String],
    read_only: bool,
) -> Result<(), String> {
    let arguments = arguments(source, options, read_only)?;
    let failed = |why: String| format!("nfs {}:{} could not be mounted: {why}", source.server, source.path);
    let mount = Program::new("mount", MOUNT_TIMEOUT).args(arguments).args([dir]);
    let output = mount.run().await.map_err(|why| failed(why.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = output.stderr();
    Err(failed(format!("{stderr} (it needs mount.nfs on this node: package nfs-common or nfs-utils)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(server: &str, path: &str, read_only: bool) -> Result<Vec<String>, String> {
        let source = NFSVolumeSource { server: server.to_owned(), path: path.to_owned(), read_only: None };
        arguments(&source, &["vers=4.2".to_owned()], read_only)
    }

    #[test]
    fn servers_and_paths_are_no_options() {
        for (server, wanted) in [
            ("files.example", "files.example:/a b"),
            ("10.0.0.1", "10.0.0.1:/a b"),
            ("fd00::1", "[fd00::1]:/a b"),
            ("[fd00::1]", "[fd00::1]:/a b"),
            ("fe80::1%eth0", "[fe80::1%eth0]:/a b"),
        ] {
            let made = asked(server, "/a b", true).unwrap();
            assert_eq!(made, ["-t", "nfs", "-o", "vers=4.2,ro", "--", wanted]);
        }
        for server in ["", "-o", "--bind", "a b", "a/b", "a,b", "a\n"] {
            assert!(asked(server, "/", false).unwrap_err().contains("neither a name nor an address"), "{server:?}");
        }
        for path in ["", "a", "-o", "/a\nb"] {
            assert!(asked("s", path, false).unwrap_err().contains("must be absolute"), "{path:?}");
        }
    }
}
