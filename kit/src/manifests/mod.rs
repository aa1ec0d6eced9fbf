//! Manifests in a folder: read alike by the embedded API, which applies them, and by the node, which runs the pods of
//! its own folder. `documents` is pure and imports no file system.

mod documents;
mod folder;

pub use documents::{Broken, Document, Format, format_of, read};
pub use folder::{Folder, Scanned, rescan};
