//! The attachments of pods, on disk: what plugins were called with, so that a pod can be disconnected after a crash at
//! any point.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};
use windlass_kit::{atomic_file, disk};

use super::config::ConfList;

/// The attachment of a pod: `Adding` → `Added` → `Deleting` → gone. From the first to the last its namespace is held.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Attachment {
    pub(super) pod_uid: String,
    pub(super) sandbox: String,
    pub(super) arguments: String,
    pub(super) list: ConfList,
    pub(super) capabilities: Map<String, Value>,
    /// What the last plugin has returned.
    pub(super) result: Option<Value>,
    /// DEL was sent to the plugins; not all of them may have completed it.
    #[serde(default)]
    pub(super) deleting: bool,
}

/// How far an attachment is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum State<'a> {
    /// Plugins are being called, or were when the process ended.
    Adding,
    /// All of them have returned.
    Added(&'a Value),
    /// It must be disconnected in any case: its remains are useless.
    Deleting,
}

impl Attachment {
    pub(super) fn state(&self) -> State<'_> {
        match (&self.result, self.deleting) {
            (_, true) => State::Deleting,
            (Some(result), false) => State::Added(result),
            (None, false) => State::Adding,
        }
    }
}

/// The directory of attachments, a file for each pod.
#[derive(Debug)]
pub(super) struct Store(PathBuf);

/// What was in the directory.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) store: Store,
    pub(super) attachments: Vec<Attachment>,
    /// Files that cannot be understood, and why.
    pub(super) unreadable: Vec<(PathBuf, String)>,
}

impl Store {
    /// Reads all attachments. Files that cannot be understood are left there: what their pods hold is not known.
    ///
    /// # Errors
    /// When the directory, or a file of it, cannot be read.
    pub(super) fn open(dir: &Path) -> io::Result<Opened> {
        atomic_file::make_dir(dir, 0o700)?;
        let (mut attachments, mut unreadable) = (Vec::new(), Vec::new());
        for path in disk::entries(dir)? {
            if path.extension().is_some_and(|e| e == "json") {
                match serde_json::from_slice::<Attachment>(&disk::read(&path)?) {
                    Ok(attachment) => attachments.push(attachment),
                    Err(error) => unreadable.push((path, error.to_string())),
                }
            }
        }
        Ok(Opened { store: Self(dir.to_owned()), attachments, unreadable })
    }

    fn file(&self, pod_uid: &str) -> PathBuf {
        self.0.join(format!("{pod_uid}.json"))
    }

    /// Writes an attachment; it survives a crash of the machine.
    ///
    /// # Errors
    /// Names the file.
    pub(super) fn save(&self, attachment: &Attachment) -> Result<(), String> {
        let path = self.file(&attachment.pod_uid);
        let written = serde_json::to_vec(attachment)
            .map_err(io::Error::from)
            .and_then(|text| atomic_file::write_durable(&path, &text, 0o600));
        written.map_err(|e| format!("{} could not be written: {e}", path.display()))
    }

    /// Removes the attachment of a pod.
    ///
    /// # Errors
    /// Names the file.
    pub(super) fn remove(&self, pod_uid: &str) -> Result<(), String> {
        let path = self.file(pod_uid);
        atomic_file::remove(&path).map_err(|e| format!("{} could not be removed: {e}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use windlass_model_disk::{Case, Lasts};

    use super::*;

    fn attachment(deleting: bool) -> Attachment {
        let text = json!({"pod_uid": "u", "sandbox": "s", "arguments": "", "capabilities": {}, "result": null,
            "list": {"name": "n", "version": "0.4.0", "plugins": []}, "deleting": deleting});
        serde_json::from_value(text).unwrap()
    }

    fn open(dir: &Path) -> Result<Store, String> {
        Store::open(&dir.join("cni")).map(|opened| opened.store).map_err(|e| format!("u.json: {e}"))
    }

    /// What plugins were called with is on disk before they are, and as long as they may have to be called again.
    #[test]
    fn each_call_of_a_change_may_fail() {
        let prepare = |dir: &Path| open(dir).unwrap().save(&attachment(false)).unwrap();
        let deleting = |dir: &Path, what: &str| {
            let opened = Store::open(&dir.join("cni")).unwrap();
            assert!(opened.unreadable.is_empty(), "{what}: {opened:?}");
            opened.attachments.first().map(|one| one.deleting)
        };
        let saved = Case {
            what: "an attachment that is to be disconnected",
            prepare: &prepare,
            act: &|dir| open(dir)?.save(&attachment(true)),
            judge: &|dir, done, what| {
                let found = deleting(dir, what);
                assert!(found == Some(true) || (!done && found == Some(false)), "{what}: {found:?}");
            },
            lasts: Lasts::Power,
            says: &["u.json"],
        }
        .run();
        let removed = Case {
            what: "an attachment that is gone",
            prepare: &prepare,
            act: &|dir| open(dir)?.remove("u"),
            judge: &|dir, done, what| {
                let found = deleting(dir, what);
                assert!(found.is_none() || (!done && found == Some(false)), "{what}: {found:?}");
            },
            lasts: Lasts::Power,
            says: &["u.json"],
        }
        .run();
        let first = Case {
            what: "the first attachment of a node",
            prepare: &|_| (),
            act: &|dir| open(dir)?.save(&attachment(false)),
            judge: &|dir, done, what| {
                let found = deleting(dir, what);
                assert!(found == Some(false) || (!done && found.is_none()), "{what}: {found:?}");
            },
            lasts: Lasts::Power,
            says: &["u.json"],
        }
        .run();
        println!("attachments: {} pairs", saved + removed + first);
        assert!(saved > 20 && removed > 10 && first > 20, "{saved} {removed} {first}");
    }

    #[test]
    fn attachments_of_earlier_versions_are_read_or_reported() {
        let dir = tempfile::tempdir().unwrap();
        let old = json!({"pod_uid": "u", "sandbox": "s", "arguments": "", "capabilities": {}, "result": {"ips": []},
            "list": {"name": "n", "version": "0.4.0", "plugins": []}});
        fs::write(dir.path().join("u.json"), old.to_string()).unwrap();
        fs::write(dir.path().join("v.json"), "").unwrap();
        let Opened { store, attachments: all, unreadable } = Store::open(dir.path()).unwrap();
        assert_eq!(unreadable.len(), 1);
        assert!(unreadable[0].0.ends_with("v.json"), "{unreadable:?}");
        let [attachment] = &all[..] else { panic!("{all:?}") };
        assert_eq!(attachment.state(), State::Added(&json!({"ips": []})));
        let leaving = Attachment { deleting: true, ..attachment.clone() };
        store.save(&leaving).unwrap();
        assert_eq!(Store::open(dir.path()).unwrap().attachments[0].state(), State::Deleting);
        store.remove("u").unwrap();
        store.remove("u").unwrap();
        assert!(Store::open(dir.path()).unwrap().attachments.is_empty());
    }
}
