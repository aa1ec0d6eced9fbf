//! No file of the API server imports one that imports it, over however many others.

use std::collections::{BTreeMap, BTreeSet};

use super::shipped;

const ROOT: &str = "control/apiserver/src/apiserver";
/// Folders of the API server that must not import others of it: who, whom.
const FORBIDDEN: [(&str, &[&str]); 4] = [
    ("types", &["filters", "handlers"]),
    ("pipeline", &["handlers"]),
    ("filters", &["handlers", "pipeline"]),
    ("request", &["handlers"]),
];

pub(super) type Module = Vec<String>;

/// `a::{b, c::{self, d}}` → `a::b`, `a::c`, `a::c::d`.
fn expanded(tree: &str) -> Vec<Module> {
    let tree = tree.trim();
    let Some(at) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![path.split("::").map(str::trim).filter(|part| *part != "self").map(str::to_owned).collect()];
    };
    let before: Module =
        tree[..at].split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let inner = tree[at + 1..].rsplit_once('}').map_or("", |(inner, _)| inner);
    let (mut depth, mut from, mut items) = (0, 0, Vec::new());
    for (i, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&inner[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    items.push(&inner[from..]);
    let items = items.into_iter().filter(|item| !item.trim().is_empty());
    items.flat_map(expanded).map(|item| [before.clone(), item].concat()).collect()
}

/// The imports of a file, whether it passes them on, and the paths in its code.
pub(super) fn paths(code: &str) -> Vec<(bool, Module)> {
    let (mut found, mut rest) = (Vec::new(), String::new());
    let mut statement: Option<String> = None;
    for line in code.lines() {
        let starts = line.starts_with("use ") || (line.starts_with("pub") && line.contains(" use "));
        if statement.is_none() && !starts {
            rest.push_str(line);
            rest.push('\n');
            continue;
        }
        let text = statement.get_or_insert_default();
        text.push_str(line);
        if line.trim_end().ends_with(';') {
            let text = statement.take().unwrap_or_default();
            let tree = text.split_once("use ").map_or("", |(_, tree)| tree.trim_end_matches(';'));
            found.extend(expanded(tree).into_iter().map(|path| (text.starts_with("pub"), path)));
        }
    }
    for start in ["crate::", "super::", "windlass_kit::"] {
        for (at, _) in rest.match_indices(start) {
            let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let end = rest[at..].find(|c| !is_path(c)).map_or(rest.len(), |end| at + end);
            if !rest[..at].ends_with(is_path) {
                found.push((false, rest[at..end].split("::").map(str::to_owned).collect()));
            }
        }
    }
    found
}

/// A path as it is from the root of the API server on; `None` for those that lead elsewhere.
fn absolute(module: &[String], path: &[String], files: &BTreeMap<Module, String>) -> Option<Module> {
    let mut at = module.to_vec();
    let mut path = path;
    match path.first()?.as_str() {
        "crate" => return (path.get(1)? == "apiserver").then(|| path[2..].to_vec()),
        "super" => {
            while path.first().is_some_and(|part| part == "super") {
                at.pop()?;
                path = &path[1..];
            }
        }
        // A child, by its name alone.
        first => {
            let child = [module, &[first.to_owned()]].concat();
            files.get(&child)?;
        }
    }
    Some([at, path.to_vec()].concat())
}

#[test]
fn paths_are_found() {
    let code = "pub use a::{b, c::{self, d as e}};\nuse super::{\n    f,\n    g::h,\n};\nfn i() { crate::j::k() }\n";
    let found: Vec<String> =
        paths(code).into_iter().map(|(passed, path)| format!("{passed} {}", path.join("::"))).collect();
    assert_eq!(
        found,
        ["true a::b", "true a::c", "true a::c::d", "false super::f", "false super::g::h", "false crate::j::k"]
    );
}

#[test]
fn no_file_of_the_api_server_imports_itself_in_a_circle() {
    let mut files: BTreeMap<Module, String> = BTreeMap::new();
    for (path, code) in shipped() {
        let Some(inside) = path.strip_prefix(ROOT) else { continue };
        let mut module: Module =
            inside.trim_start_matches('/').trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| last == "mod") {
            module.pop();
        }
        files.insert(module, code);
    }
    assert!(files.len() > 60, "only {} files were found", files.len());
    let paths: BTreeMap<&Module, Vec<(bool, Module)>> = files
        .iter()
        .map(|(module, code)| {
            let all = paths(code).into_iter();
            (module, all.filter_map(|(passed, path)| Some((passed, absolute(module, &path, &files)?))).collect())
        })
        .collect();
    // What a module passes on is imported from where it is.
    let mut passed_on: BTreeMap<Module, &Module> = BTreeMap::new();
    for (module, paths) in &paths {
        for (_, path) in paths.iter().filter(|(passed, _)| *passed) {
            let name = path.last().cloned().unwrap_or_default();
            passed_on.insert([module.as_slice(), &[name]].concat(), path);
        }
    }
    let file_of = |path: &Module| {
        let mut path = path.clone();
        for _ in 0..8 {
            let known = (0..=path.len()).rev().find(|end| files.contains_key(&path[..*end])).unwrap_or_default();
            let Some(target) = path.get(..=known).and_then(|item| passed_on.get(item)) else {
                return path[..known].to_vec();
            };
            path = [target.as_slice(), &path[known + 1..]].concat();
        }
        path
    };
    let mut imports: BTreeMap<&Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, paths) in &paths {
        let own = paths.iter().filter(|(passed, _)| !passed).map(|(_, path)| file_of(path));
        imports.insert(*module, own.filter(|other| other != *module).collect());
    }
    let edges: usize = imports.values().map(BTreeSet::len).sum();
    assert!(edges > 200, "only {edges} imports were found");
    for (module, others) in &imports {
        let folder = module.first().map_or("", String::as_str);
        let forbidden = FORBIDDEN.iter().find(|(who, _)| *who == folder).map_or(&[] as &[&str], |(_, whom)| whom);
        let wrong = others.iter().find(|other| other.first().is_some_and(|first| forbidden.contains(&first.as_str())));
        assert!(wrong.is_none(), "{} imports {}", module.join("/"), wrong.map_or_else(String::new, |w| w.join("/")));
    }
    // A module that imports none of the remaining ones is in no circle.
    while let Some(free) = imports
        .iter()
        .find(|(_, others)| others.iter().all(|other| !imports.contains_key(other)))
        .map(|(module, _)| *module)
    {
        imports.remove(free);
    }
    let left: Vec<String> = imports
        .iter()
        .map(|(module, others)| {
            let others: Vec<String> =
                others.iter().filter(|other| imports.contains_key(other)).map(|other| other.join("/")).collect();
            format!("{} imports {}", module.join("/"), others.join(", "))
        })
        .collect();
    assert_eq!(left, Vec::<String>::new());
}
