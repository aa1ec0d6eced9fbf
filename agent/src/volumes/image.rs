//! Volumes that show the files of an image.

use std::{fs, path::Path, process::Stdio};

use futures::StreamExt as _;
use tokio::io::AsyncWriteExt as _;

use super::host::make_dir;
use crate::engine::Engine;

/// The folder of the files, below the volume's.
pub(super) const FILES: &str = "files";
/// Says of which image the files are, once all are there.
const COMPLETE: &str = "complete";

/// Unpacks an image below `dir`; one that is there whole stays. Docker gives its files through a container of this
/// `name`: what a crash left behind is found by it and replaced.
pub(super) async fn unpack(engine: &Engine, dir: &Path, id: &str, name: &str) -> Result<(), String> {
    if fs::read_to_string(dir.join(COMPLETE)).is_ok_and(|there| there == id) {
        return Ok(());
    }
    let files = dir.join(FILES);
    let _ = fs::remove_dir_all(&files);
    make_dir(&files, 0o755)?;
    let result = copy(engine, name, id, &files).await;
    let removed = engine.remove(name).await.map_err(|e| e.to_string());
    result.and(removed)?;
    fs::write(dir.join(COMPLETE), id).map_err(|e| format!("{} could not be written: {e}", dir.display()))
}

/// Through the host's own tar, which neither leaves its folder nor follows links that an archive makes.
async fn copy(engine: &Engine, name: &str, id: &str, files: &Path) -> Result<(), String> {
    let mut pieces = Box::pin(engine.files_of_image(id, name).await.map_err(|e| e.to_string())?);
    let failed = |e: std::io::Error| format!("the image could not be unpacked with tar: {e}");
    let mut child = tokio::process::Command::new("tar")
        .args(["--extract", "--preserve-permissions", "--numeric-owner", "--exclude=dev/*", "--file=-", "--directory"])
        .arg(files)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        while let Some(piece) = pieces.next().await {
            stdin.write_all(&piece.map_err(|e| e.to_string())?).await.map_err(failed)?;
        }
        stdin.shutdown().await.map_err(failed)?;
    }
    let output = child.wait_with_output().await.map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("the image could not be unpacked with tar: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
