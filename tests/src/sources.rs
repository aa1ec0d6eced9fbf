//! The project's own sources and documents, for tests of its structure.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The root of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every Rust file of the repository, with its path relative to the root and its text, ordered by path.
///
/// # Panics
/// When a directory or a file cannot be read.
#[must_use]
pub fn rust_sources() -> Vec<(String, String)> {
    files_ending_in(".rs")
}

/// The same of its documents in Markdown.
///
/// # Panics
/// When a directory or a file cannot be read.
#[must_use]
pub fn documents() -> Vec<(String, String)> {
    files_ending_in(".md")
}

fn files_ending_in(suffix: &str) -> Vec<(String, String)> {
    let root = repository();
    let mut files = Vec::new();
    collect(&root, suffix, &mut files);
    let relative = |path: &Path| path.strip_prefix(&root).expect("below the root").display().to_string();
    let text = |path: &Path| fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut sources: Vec<_> = files.iter().map(|path| (relative(path), text(path))).collect();
    sources.sort();
    sources
}

fn collect(dir: &Path, suffix: &str, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            // What is built, and what git keeps.
            if name != "target" && name != "dist" && !name.starts_with('.') {
                collect(&path, suffix, found);
            }
        } else if name.ends_with(suffix) {
            found.push(path);
        }
    }
}
