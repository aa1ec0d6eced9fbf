//! Directories of manifests: for the embedded API, which applies them, and for the node, which runs them as static
//! pods. `documents` is pure and imports no file system.

mod directory;
mod documents;

pub use directory::{ManifestDir, Scanned, rescan};
pub use documents::{Document, Format, ParseError, format_of, read};
