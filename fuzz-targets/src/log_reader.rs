//! Log files in either format, with partial lines: reading never panics, and the output is that of its entries in
//! order, for any request.

use std::fs;

use windlass_agent::logs::{LogRequest, entry, read_to_end};

/// The output of the entries of the files, read in the simplest way.
fn output_of(files: [&[u8]; 2], timestamps: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut line_begins = true;
    for found in files.into_iter().flat_map(|file| file.split(|b| *b == b'\n')).filter_map(entry::parse) {
        if timestamps && line_begins {
            entry::write_time(&found.time, &mut out);
            out.push(b' ');
        }
        found.content.write(&mut out);
        line_begins = found.content.ends_line();
    }
    out
}

pub(crate) fn run(input: &[u8]) {
    let [choice, cut, lines, content @ ..] = input else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log");
    let (older, newer) = content.split_at(usize::from(*cut).min(content.len()));
    fs::write(dir.path().join("log.1"), older).expect("a file can be written");
    fs::write(&path, newer).expect("a file can be written");
    let timestamps = choice & 1 == 1;
    let all = output_of([older, newer], timestamps);
    let read =
        |request: LogRequest| read_to_end(&path, LogRequest { timestamps, ..request }).expect("the log is there");
    assert_eq!(read(LogRequest::default()), all);
    let bytes = usize::from(*lines).max(1);
    let limited = read(LogRequest { limit: Some(bytes as u64), ..LogRequest::default() });
    assert_eq!(limited, all[..bytes.min(all.len())]);
    // The last lines: at most as many as requested, and only the end.
    let tail = read(LogRequest { tail: Some(u64::from(*lines)), ..LogRequest::default() });
    assert!(timestamps || all.ends_with(&tail));
    let newlines = tail.iter().filter(|b| **b == b'\n').count();
    // A line of JSON may hold newlines of its own.
    assert!(content.contains(&b'{') || newlines <= usize::from(*lines), "{newlines} lines of {lines}");
    let _ = read(LogRequest { since: Some(i64::from(*lines) << 24), ..LogRequest::default() });
}
