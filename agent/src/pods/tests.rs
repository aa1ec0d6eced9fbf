//! The folders of `pods` import only those below them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// From the top to the bottom.
const FOLDERS: [&str; 6] = ["dispatcher", "worker", "steps", "admission", "container", "lifecycle"];

fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let all = entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    all.filter(|path| path.extension().is_some_and(|e| e == "rs")).collect()
}

/// The paths that a use tree such as `a::{b, c::d}` imports.
fn flatten(prefix: &str, tree: &str, out: &mut Vec<String>) {
    let Some((head, rest)) = tree.split_once('{') else { return out.push(format!("{prefix}{tree}")) };
    let inner = rest.strip_suffix('}').unwrap();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if start < at {
                    flatten(&format!("{prefix}{head}"), &inner[start..at], out);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// What the `use` statements of a file import.
fn imports(text: &str) -> Vec<String> {
    let statements = text.split('\n').collect::<Vec<_>>().join(" ");
    let mut out = Vec::new();
    for statement in statements.split("use ").skip(1) {
        let tree: String = statement.split(';').next().unwrap().chars().filter(|c| !c.is_whitespace()).collect();
        if tree.starts_with("crate::") || tree.starts_with("super::") {
            flatten("", &tree, &mut out);
        }
    }
    out
}

#[test]
fn folders_import_only_those_below_them() {
    let pods = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/pods");
    for (floor, folder) in FOLDERS.iter().enumerate() {
        for file in sources(&pods.join(folder)) {
            for import in imports(&fs::read_to_string(&file).unwrap()) {
                let parts: Vec<&str> = import.split("::").skip_while(|part| *part == "super").collect();
                let of_pods = import.strip_prefix("crate::pods::").map(|rest| rest.split("::").next().unwrap());
                let first = of_pods.unwrap_or(if import.starts_with("super") { parts[0] } else { "" });
                let above = FOLDERS[..floor].contains(&first);
                assert!(!above, "{} imports {import}, which is above it", file.display());
            }
        }
    }
}

#[test]
fn cgroup_and_node_watch_import_nothing_of_pods_and_node() {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = sources(&agent.join("cgroup")).into_iter().chain([agent.join("node_watch.rs")]);
    for file in files {
        for import in imports(&fs::read_to_string(&file).unwrap()) {
            let forbidden = ["crate::pods::", "crate::node::"].iter().any(|prefix| import.starts_with(prefix));
            assert!(!forbidden, "{} imports {import}", file.display());
        }
    }
}

#[test]
fn use_trees_are_read() {
    let text = "use crate::{a, pods::{b::{self, C}, d}};\nuse super::e;\nuse std::f;\n";
    let wanted = ["crate::a", "crate::pods::b::self", "crate::pods::b::C", "crate::pods::d", "super::e"];
    assert_eq!(imports(text), wanted);
}
