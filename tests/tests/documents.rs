//! The documents: links lead to files and headings that exist, commands and Makefile targets exist, figures of the specification
//! were measured, metrics of the runbook are written, and the language stays plain.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use windlass_tests::sources::{documents, repository, rust_sources};

/// A document as lines, without what the fences of code hold; and what they hold.
fn prose_and_fences(text: &str) -> (Vec<&str>, Vec<&str>) {
    let mut within = false;
    let (mut prose, mut fences) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            within = !within;
        } else if within {
            fences.push(line);
        } else {
            prose.push(line);
        }
    }
    (prose, fences)
}

/// A line in two: what stands outside of backquotes, and the spans of code.
fn split_code(line: &str) -> (String, Vec<&str>) {
    let parts: Vec<&str> = line.split('`').collect();
    let outside = parts.iter().step_by(2).copied().collect::<Vec<_>>().join(" ");
    // An odd backquote opens nothing.
    let spans = parts[..parts.len() / 2 * 2].iter().skip(1).step_by(2).copied().collect();
    (outside, spans)
}

/// The anchor of a heading, as GitHub makes it: lower case, spaces as hyphens, no other punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// All anchors of a document; the second of two equal headings gets a number.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for line in prose_and_fences(text).0 {
        let Some(heading) = line.strip_prefix('#') else { continue };
        let anchor = anchor(heading.trim_start_matches('#'));
        let times = seen.entry(anchor.clone()).or_default();
        all.insert(if *times == 0 { anchor } else { format!("{anchor}-{times}") });
        *times += 1;
    }
    all
}

/// The targets of the links of a document, inline ones and definitions of references.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose_and_fences(text).0 {
        let (outside, _) = split_code(line);
        let inline = outside.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(inline.map(|target| target.split(' ').next().unwrap_or_default().to_owned()));
        let definition = outside.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        found.extend(definition.map(|(_, target)| target.trim().to_owned()));
    }
    found
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, component| {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                path.pop();
            }
            other => path.push(other),
        }
        path
    })
}

/// Why a link of the document at `from` is broken; `None` if it is not, or leaves the repository.
fn problem_of_link(from: &str, target: &str, all: &BTreeMap<String, String>) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, fragment) = target.split_once('#').map_or((target, None), |(file, fragment)| (file, Some(fragment)));
    let path = if file.is_empty() {
        PathBuf::from(from)
    } else {
        normal(&Path::new(from).parent().unwrap_or(Path::new("")).join(file))
    };
    let path = path.display().to_string();
    if !repository().join(&path).exists() {
        return Some(format!("{from}: ({target}): {path} does not exist"));
    }
    let fragment = fragment?;
    let Some(text) = all.get(&path) else { return Some(format!("{from}: ({target}): {path} has no headings")) };
    (!anchors(text).contains(fragment)).then(|| format!("{from}: ({target}): {path} has no heading #{fragment}"))
}

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let all: BTreeMap<String, String> = documents().into_iter().collect();
    let (mut checked, mut wrong) = (0, Vec::new());
    for (path, text) in &all {
        for target in links(text) {
            checked += 1;
            wrong.extend(problem_of_link(path, &target, &all));
        }
    }
    assert!(checked > 80, "only {checked} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let text = "# A page\n## One `of` two: 2026-11-23\n## Same\n## Same\n\n`[no](code.md)` [a](#same-1) [b](missing.md \"title\")\n\
                ```\n# no heading\n[no](code.md)\n```\n[ref]: docs/page.md#none\n";
    assert_eq!(
        anchors(text).iter().map(String::as_str).collect::<Vec<_>>(),
        ["a-page", "one-of-two-2026-11-23", "same", "same-1"]
    );
    assert_eq!(links(text), ["#same-1", "missing.md", "docs/page.md#none"]);
    let all = BTreeMap::from([("README.md".to_owned(), text.to_owned()), ("docs/x.md".to_owned(), "# X".to_owned())]);
    for (from, target, why) in [
        ("README.md", "https://example.com/#x", None),
        ("README.md", "#same-1", None),
        ("docs/x.md", "../README.md#a-page", None),
        ("docs/x.md", "../Makefile", None),
        ("README.md", "missing.md", Some("missing.md does not exist")),
        ("docs/x.md", "README.md", Some("docs/README.md does not exist")),
        ("README.md", "#same-2", Some("README.md has no heading #same-2")),
        ("README.md", "Makefile#x", Some("Makefile has no headings")),
    ] {
        let found = problem_of_link(from, target, &all);
        match why {
            Some(why) => assert!(found.as_ref().is_some_and(|found| found.contains(why)), "{target}: {found:?}"),
            None => assert_eq!(found, None, "{target}"),
        }
    }
}

/// `PascalCase` as clap has it on the command line.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.extend(c.to_lowercase());
    }
    kebab
}

/// The subcommands of each command, by its words; those of the program itself are at "". Read out of the enums that clap derives
/// them from.
fn subcommands(sources: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    const DERIVE: &str = "clap::Subcommand)]\nenum ";
    let mut found = BTreeMap::new();
    for (path, text) in sources {
        let Some(file) = path.strip_prefix("cli/src/commands/") else { continue };
        let Some((_, rest)) = text.split_once(DERIVE) else { continue };
        let body = rest.split("\n}").next().unwrap_or_default();
        let variants = body.lines().filter_map(|line| line.strip_prefix("    ")?.split(['(', ',', ' ']).next());
        let variants = variants.filter(|name| name.starts_with(char::is_uppercase)).map(kebab).collect();
        let command = file.trim_end_matches(".rs").trim_end_matches("mod").trim_end_matches('/');
        found.insert(command.to_owned(), variants);
    }
    found
}

/// The commands that a document names: the code after the program's name, up to the end of the command.
fn commands<'a>(text: &'a str, program: &str) -> Vec<&'a str> {
    let (prose, fences) = prose_and_fences(text);
    let spans = prose.into_iter().flat_map(|line| split_code(line).1);
    let mut found = Vec::new();
    for code in fences.into_iter().chain(spans) {
        for command in code.split([';', '|', '#']) {
            let mut words = command.trim_start().split(' ').filter(|word| !word.contains('=')).peekable();
            if words.peek() == Some(&program) {
                found.extend(command.trim_start().split_once(program).map(|(_, arguments)| arguments.trim()));
            }
        }
    }
    found
}

/// Why a command of the program does not exist.
fn problem_of_command(
    arguments: &str,
    known: &BTreeMap<String, BTreeSet<String>>,
    sources: &[(String, String)],
) -> Option<String> {
    let words: Vec<&str> = arguments.split(' ').filter(|word| !word.is_empty()).collect();
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase()) && !word.contains(['/', '.', ':']);
    if let Some(first) = words.first().copied().filter(is_name) {
        if !known[""].contains(first) {
            return Some(format!("windlass {first} is no command"));
        }
        let second = words.get(1).copied().filter(is_name);
        if let Some((below, second)) = known.get(first).zip(second)
            && !below.contains(second)
        {
            return Some(format!("windlass {first} {second} is no command"));
        }
    }
    let flags = words.iter().filter_map(|word| word.trim_matches(['[', ']', ',']).strip_prefix("--"));
    let mut fields = flags.map(|flag| flag.split(['=', '[']).next().unwrap_or_default().replace('-', "_"));
    let is_written = |field: &String| {
        let (declared, named) = (format!("{field}: "), format!("\"{}\"", field.replace('_', "-")));
        let of_cli = sources.iter().filter(|(path, _)| path.starts_with("cli/src/"));
        field == "version" || of_cli.into_iter().any(|(_, text)| text.contains(&declared) || text.contains(&named))
    };
    fields
        .find(|field| !is_written(field))
        .map(|field| format!("windlass {arguments}: --{} is no flag", field.replace('_', "-")))
}

#[test]
fn commands_and_targets_exist() {
    let sources = rust_sources();
    let known = subcommands(&sources);
    assert!(
        known[""].contains("up") && known["config"].contains("check") && known["rules"].contains("trace"),
        "{known:?}"
    );
    let makefile = fs::read_to_string(repository().join("Makefile")).expect("the Makefile");
    let targets: BTreeSet<&str> =
        makefile.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name).collect();
    let (mut checked, mut wrong) = (0, Vec::new());
    for (path, text) in documents() {
        for arguments in commands(&text, "windlass") {
            checked += 1;
            wrong.extend(problem_of_command(arguments, &known, &sources).map(|why| format!("{path}: {why}")));
        }
        for arguments in commands(&text, "make") {
            let target = arguments.split([' ', ',']).next().unwrap_or_default();
            checked += 1;
            // `make` alone lists them.
            if !target.is_empty() && !targets.contains(target) {
                wrong.push(format!("{path}: make {target} is no target"));
            }
        }
    }
    assert!(checked > 100, "only {checked} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let text = "Run `windlass status`, not windlass stop; `make build`.\n```sh\nwindlass up --detach; make run  # windlass\n\
                FOO=1 make bench | cat\nsystemctl stop windlass\n```\n";
    assert_eq!(commands(text, "windlass"), ["up --detach", "", "status"]);
    assert_eq!(commands(text, "make"), ["run", "bench", "build"]);
    let sources = rust_sources();
    let known = subcommands(&sources);
    for (arguments, why) in [
        ("", None),
        ("--version", None),
        ("up --no-node", None),
        ("rules default/web", None),
        ("leave [--drain] [--purge]", None),
        ("proxy cleanup", None),
        ("stop", Some("windlass stop is no command")),
        ("config print", Some("windlass config print is no command")),
        ("up --no-such-flag", Some("--no-such-flag is no flag")),
    ] {
        let found = problem_of_command(arguments, &known, &sources);
        match why {
            Some(why) => assert!(found.as_ref().is_some_and(|found| found.contains(why)), "{arguments}: {found:?}"),
            None => assert_eq!(found, None, "{arguments}"),
        }
    }
}

/// The numbers of a text with their signs, decimals and units: `+27 ms`, `1,467`, `0.31 %`.
fn figures(text: &str) -> Vec<String> {
    const UNITS: [&str; 6] = ["ms", "s", "MB", "KB", "%", "MB/s"];
    let mut found: Vec<String> = Vec::new();
    let mut after_figure = false;
    for word in text.split([' ', ';', '(', ')']).map(|word| word.trim_end_matches(',')).filter(|word| !word.is_empty())
    {
        let is_figure = word.trim_start_matches('+').starts_with(|c: char| c.is_ascii_digit());
        if is_figure {
            found.push(word.to_owned());
        } else if after_figure && UNITS.contains(&word) {
            let figure = found.last_mut().expect("a figure before its unit");
            *figure = format!("{figure} {word}");
        }
        after_figure = is_figure;
    }
    found
}

/// A promise's last column says whether it is kept, the one before it when that was seen, the second what is promised.
#[test]
fn figures_of_the_specification_were_measured() {
    let read = |path: &str| fs::read_to_string(repository().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (specification, diary) = (read("SPECIFICATION.md"), read("docs/performance.md"));
    let (mut checked, mut wrong) = (0, Vec::new());
    for line in specification.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells.len() >= 5, "{line}");
        let kept = cells[cells.len() - 1];
        assert!(kept == "yes" || kept.starts_with("**no**"), "{line}: {kept:?} says neither yes nor no");
        for cell in &cells[2..cells.len() - 1] {
            for figure in figures(cell) {
                checked += 1;
                if !diary.contains(&figure) {
                    wrong.push(format!("{figure:?} is not in docs/performance.md: {line}"));
                }
            }
        }
    }
    assert!(checked > 100, "only {checked} figures were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn figures_have_their_units() {
    assert_eq!(figures("+27 ms"), ["+27 ms"]);
    assert_eq!(figures("1,467 per second; 0.6–0.7 (2026-11-27)"), ["1,467", "0.6–0.7", "2026-11-27"]);
    assert_eq!(figures("60 MB, 65 MB after the first comparison"), ["60 MB", "65 MB"]);
    assert_eq!(figures("two `iptables-save`"), Vec::<String>::new());
}

/// Metrics that the runbook alerts on exist.
#[test]
fn metrics_of_the_runbook_are_written() {
    const OURS: [&str; 9] = [
        "apiserver_",
        "coredns_",
        "kubelet_",
        "kubeproxy_",
        "node_collector_",
        "process_",
        "scheduler_",
        "windlass_",
        "workqueue_",
    ];
    let text = fs::read_to_string(repository().join("docs/operations.md")).expect("the runbook");
    let written =
        rust_sources().into_iter().filter(|(path, _)| !path.contains("/tests") && !path.starts_with("tests/"));
    let written: Vec<String> = written.map(|(_, text)| text).collect();
    let is_in_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut checked, mut wrong) = (BTreeSet::new(), Vec::new());
    for span in text.lines().flat_map(|line| split_code(line).1) {
        for name in span.split(|c| !is_in_name(c)).filter(|name| OURS.iter().any(|prefix| name.starts_with(prefix))) {
            // The name of a crate, in a log filter.
            if !span.contains(&format!("{name}=debug")) && checked.insert(name) {
                let literal = format!("\"{name}\"");
                if !written.iter().any(|text| text.contains(&literal)) {
                    wrong.push(name);
                }
            }
        }
    }
    assert!(checked.len() > 20, "only {checked:?} were found");
    assert!(wrong.is_empty(), "docs/operations.md: not written: {wrong:?}");
}

/// Readers find a term alphabetically, and a file by its directory.
#[test]
fn the_architecture_names_every_directory_and_sorts_its_glossary() {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("the architecture");
    let root = fs::read_dir(repository()).expect("the repository");
    for entry in root.map(|entry| entry.expect("an entry")).filter(|entry| entry.path().is_dir()) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_built = name == "target" || name == "dist" || name.starts_with('.');
        assert!(is_built || text.contains(&format!("`{name}/`")), "{name}/ is not in the map");
    }
    let glossary = text.split("## Glossary").nth(1).expect("the glossary");
    let terms = glossary.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next()).skip(1);
    let letters = |term: &str| -> String {
        term.to_lowercase().chars().filter(|c| c.is_ascii_alphabetic() || *c == ' ').collect()
    };
    let terms: Vec<String> = terms.map(letters).collect();
    assert!(terms.len() > 50, "only {terms:?}");
    let unsorted = terms.windows(2).find(|pair| pair[0] > pair[1]);
    assert_eq!(unsorted, None, "the glossary is not in alphabetical order there");
}

/// Words that were swept out of the documents and of what the program says, and what is written in their place.
const SWEPT: [(&str, &str); 5] = [
    ("told", "reported or shown"),
    ("tells", "reports or shows"),
    ("anew", "again"),
    ("beside", "with, next to or besides"),
    ("heeded", "honoured or enforced"),
];

/// What is wrong in some text, and where.
fn swept_words(path: &str, number: usize, text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_lowercase);
    let found = words.filter_map(|word| SWEPT.iter().find(|(swept, _)| *swept == word));
    found.map(|(swept, better)| format!("{path}:{}: {swept}: say {better}", number + 1)).collect()
}

#[test]
fn swept_words_do_not_come_back() {
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        wrong.extend(text.lines().enumerate().flat_map(|(number, line)| swept_words(&path, number, line)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The strings of a line of code, without what is filled in.
fn strings(line: &str) -> String {
    let (mut found, mut inside, mut depth) = (String::new(), false, 0);
    let mut chars = line.trim_start().chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '/' if !inside && chars.peek() == Some(&'/') => break,
            '\\' if inside => drop(chars.next()),
            '"' => {
                inside = !inside;
                found.push(' ');
            }
            '{' if inside => depth += 1,
            '}' if inside => depth -= 1,
            _ if inside && depth == 0 => found.push(c),
            _ => {}
        }
    }
    found
}

#[test]
fn strings_are_found() {
    let line = r#"    warn!("a {told} b\"c", told = "d"); // "beside""#;
    assert_eq!(strings(line).split_whitespace().collect::<Vec<_>>(), ["a", "bc", "d"]);
}

#[test]
fn the_program_does_not_say_swept_words() {
    let crates = ["agent/src/", "apimachinery/src/", "cadvisor/src/", "cli/src/", "control/", "kit/src/", "proxy/src/"];
    let is_said = |path: &str| crates.iter().any(|part| path.starts_with(part)) && !path.contains("test");
    let (mut wrong, mut files) = (Vec::new(), 0);
    for (path, text) in rust_sources().into_iter().filter(|(path, _)| is_said(path)) {
        files += 1;
        let said = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        wrong.extend(said.lines().enumerate().flat_map(|(number, line)| swept_words(&path, number, &strings(line))));
    }
    assert!(files > 300, "only {files} files were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
