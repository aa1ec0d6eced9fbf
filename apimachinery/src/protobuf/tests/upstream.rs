//! Upstream's own objects with every field of every kind, in JSON, YAML and protobuf, and those that earlier versions wrote.
//! They are not kept here: `KUBERNETES` names a directory with Kubernetes' sources, as for `facts/extract.py`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;

use crate::{
    decode::{ContentType, decode},
    protobuf::envelope,
    schema::{Schema, canonicalize, check},
    testing::TYPES,
};

/// Files of one object, next to each other.
struct Files {
    /// `v1.35.0/apps.v1.Deployment`, without an extension.
    stem: PathBuf,
    /// What `HEAD` reads and writes, where a version wrote otherwise.
    is_old: bool,
}

impl Files {
    fn read(&self, extension: &str) -> Vec<u8> {
        fs::read(format!("{}.{extension}", self.stem.display())).unwrap()
    }

    /// What is written of what was read: the same, but for a few fields that newer types always write.
    fn written(&self, extension: &str) -> Vec<u8> {
        let other = format!("{}.after_roundtrip.{extension}", self.stem.display());
        if self.is_old && Path::new(&other).exists() { fs::read(other).unwrap() } else { self.read(extension) }
    }

    fn name(&self) -> String {
        self.stem.iter().rev().take(2).map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    fn schema(&self) -> Option<Arc<Schema>> {
        let name = self.stem.file_name()?.to_str()?;
        let parts: Vec<&str> = name.split('.').collect();
        let [group, .., version, kind] = parts.as_slice() else { return None };
        TYPES.get(&format!("{group}/{version}.{kind}")).ok()
    }
}

fn all(root: &Path) -> Vec<Files> {
    let versions = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let mut found: Vec<Files> = versions
        .flat_map(|version| {
            let is_old = version.file_name().is_some_and(|name| name != "HEAD");
            let files = fs::read_dir(version).unwrap().map(|entry| entry.unwrap().path());
            let json = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
            json.map(move |path| Files { stem: path.with_extension(""), is_old })
        })
        .filter(|files| !files.stem.to_string_lossy().ends_with(".after_roundtrip"))
        .collect();
    found.sort_by(|a, b| a.stem.cmp(&b.stem));
    found
}

fn json(bytes: &[u8], content_type: ContentType) -> Value {
    decode(bytes, content_type).unwrap().value
}

/// The lines in which two values differ.
fn difference(what: &str, ours: &Value, theirs: &Value) -> Vec<String> {
    if ours == theirs {
        return Vec::new();
    }
    let lines = |value: &Value| format!("{value:#}").lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (one, other) = (lines(ours), lines(theirs));
    let only = |sign, a: &BTreeSet<String>, b: &BTreeSet<String>| {
        a.difference(b).take(6).map(|line| format!("  {sign}{line}")).collect::<Vec<_>>()
    };
    [vec![format!(" {what}")], only('+', &one, &other), only('-', &other, &one)].concat()
}

fn wrong(files: &Files, schema: &Arc<Schema>) -> Vec<String> {
    let expected = json(&files.written("json"), ContentType::Json);
    let mut wrong = Vec::new();
    for (content_type, extension) in [(ContentType::Json, "json"), (ContentType::Yaml, "yaml")] {
        let mut read = json(&files.read(extension), content_type);
        let problems = check(schema, &read, &files.name());
        if !files.is_old && (!problems.unknown.is_empty() || !problems.wrong.is_empty()) {
            wrong.push(format!(" {extension}: {problems:?}"));
        }
        canonicalize(schema, &mut read);
        wrong.extend(difference(extension, &read, &expected));
    }
    let bytes = files.read("pb");
    match envelope::decode_object(&bytes, |_| Ok(Arc::clone(schema))) {
        Err(error) => wrong.push(format!(" pb cannot be read: {error}")),
        Ok(mut read) => {
            canonicalize(schema, &mut read);
            wrong.extend(difference("pb read", &read, &expected));
        }
    }
    match envelope::encode_object(schema, &expected) {
        Err(error) => wrong.push(format!(" pb cannot be written: {error}")),
        Ok(written) if written != files.written("pb") => {
            let read = |bytes: &[u8]| envelope::decode_object(bytes, |_| Ok(Arc::clone(schema))).unwrap_or_default();
            wrong.push(" pb written: other bytes".to_owned());
            wrong.extend(difference("pb written", &read(&written), &read(&files.written("pb"))));
        }
        Ok(_) => {}
    }
    wrong
}

#[test]
#[ignore = "reads upstream's files in a directory that KUBERNETES names"]
fn every_field_of_every_kind_is_read_and_written_as_upstream_does() {
    let tree = std::env::var("KUBERNETES").expect("KUBERNETES names a directory with Kubernetes' sources");
    let (mut seen, mut unknown, mut all_wrong) = (0, BTreeSet::new(), Vec::new());
    for files in all(&Path::new(&tree).join("staging/src/k8s.io/api/testdata")) {
        let Some(schema) = files.schema() else {
            unknown.insert(files.stem.file_name().unwrap().to_string_lossy().into_owned());
            continue;
        };
        let wrong = wrong(&files, &schema);
        if !wrong.is_empty() {
            all_wrong.push(format!("{}\n{}", files.name(), wrong.join("\n")));
        }
        seen += 1;
    }
    println!("{seen} objects in three forms; kinds that are not served: {unknown:?}");
    assert!(all_wrong.is_empty(), "{} of {seen}:\n{}", all_wrong.len(), all_wrong.join("\n"));
    assert!(seen > 250, "{seen}");
}
