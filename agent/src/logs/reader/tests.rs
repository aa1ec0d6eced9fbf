use std::{fs, io::Write as _};

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;

use super::*;

/// A log of numbered lines as Docker keeps it.
struct Log {
    dir: tempfile::TempDir,
}

impl Log {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("x-json.log")
    }

    fn rotated(&self, end: &str) -> PathBuf {
        self.dir.path().join(format!("x-json.log{end}"))
    }

    /// Appends the lines `numbers`, each a second after the one before it.
    fn print(&self, numbers: std::ops::Range<u32>) {
        self.append(&numbers.map(line).collect::<String>());
    }

    fn append(&self, text: &str) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.path()).expect("the log");
        file.write_all(text.as_bytes()).expect("the log");
    }

    /// What Docker does when a file is large enough.
    fn rotate(&self) {
        for number in (1..4).rev() {
            let _ = fs::rename(self.rotated(&format!(".{number}")), self.rotated(&format!(".{}", number + 1)));
        }
        fs::rename(self.path(), self.rotated(".1")).expect("the log");
        self.append("");
    }

    fn read(&self, request: &LogRequest) -> String {
        read_all(&mut Reader::open(&self.path(), request.clone()).expect("the log"))
    }
}

fn line(number: u32) -> String {
    let time = format!("1970-01-01T00:{:02}:{:02}.25Z", number / 60, number % 60);
    format!("{{\"log\":\"line {number}\\n\",\"stream\":\"stdout\",\"time\":\"{time}\"}}\n")
}

fn read_all(reader: &mut Reader) -> String {
    let mut all = Vec::new();
    loop {
        let mut piece = Vec::new();
        let left = reader.fill(&mut piece).expect("the log");
        all.extend(piece);
        match left {
            ReadState::More => {}
            ReadState::CaughtUp if reader.follow_rotation().expect("the log") => {}
            _ => return String::from_utf8(all).expect("text"),
        }
    }
}

fn plain(numbers: impl Iterator<Item = u32>) -> String {
    numbers.map(|n| format!("line {n}\n")).collect()
}

#[test]
fn all_files_of_a_log_are_read() {
    let log = Log::new();
    assert!(Reader::open(&log.path(), LogRequest::default()).is_err());
    log.print(0..10);
    log.rotate();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&fs::read(log.rotated(".1")).unwrap()).unwrap();
    fs::write(log.rotated(".1.gz"), gzip.finish().unwrap()).unwrap();
    fs::remove_file(log.rotated(".1")).unwrap();
    fs::rename(log.rotated(".1.gz"), log.rotated(".2.gz")).unwrap();
    log.print(10..20);
    fs::rename(log.path(), log.rotated(".1")).unwrap();
    // Between the renaming and the new file.
    assert_eq!(log.read(&LogRequest::default()), plain(0..20));
    log.print(20..30);
    assert_eq!(log.read(&LogRequest::default()), plain(0..30));
    for tail in [0, 1, 5, 10, 11, 19, 20, 21, 29, 30, 31] {
        let request = LogRequest { tail: Some(tail), ..LogRequest::default() };
        assert_eq!(log.read(&request), plain(30 - u32::try_from(tail.min(30)).unwrap()..30), "{tail}");
    }
    for since in [0, 5, 15, 25, 30] {
        let request = LogRequest { since: Some(i64::from(since) * 1_000_000_000), ..LogRequest::default() };
        assert_eq!(log.read(&request), plain(since..30), "{since}");
    }
    let last = LogRequest { timestamps: true, tail: Some(1), ..LogRequest::default() };
    assert_eq!(log.read(&last), "1970-01-01T00:00:29.250000000Z line 29\n");
    for limit in [1, 7, 8, 100] {
        let request = LogRequest { limit: Some(limit), ..LogRequest::default() };
        assert_eq!(log.read(&request), plain(0..30)[..usize::try_from(limit).unwrap()]);
    }
}

/// What a follower holds while it waits, after it has read much and before it reads more.
#[test]
fn a_follower_that_waits_holds_little() {
    let log = Log::new();
    log.print(0..50_000);
    let mut reader = following(&log, None);
    let all = read_all(&mut reader);
    assert_eq!(all, plain(0..50_000));
    assert_eq!(reader.raw.capacity(), 0);
    log.append("{\"log\":\"begun");
    assert_eq!(read_all(&mut reader), "");
    assert!(reader.raw.capacity() < 64, "{}", reader.raw.capacity());
    log.append(" and ended\\n\",\"stream\":\"stdout\",\"time\":\"1970-01-01T00:00:02Z\"}\n");
    assert_eq!(read_all(&mut reader), "begun and ended\n");
    assert_eq!(reader.raw.capacity(), 0);
}

/// The end of a compressed file is unpacked once, unless the tail is too large to be kept on the way.
#[test]
fn the_tail_of_a_compressed_file_is_unpacked_once() {
    let log = Log::new();
    log.print(0..30_000);
    let part = "{\"log\":\"part \",\"stream\":\"stdout\",\"time\":\"1970-01-01T00:00:02Z\"}\n";
    log.append(&format!("{part}garbage\n{part}{}", line(30_000)));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&fs::read(log.path()).unwrap()).unwrap();
    fs::write(log.rotated(".1.gz"), gzip.finish().unwrap()).unwrap();
    fs::remove_file(log.path()).unwrap();
    log.append("");
    log.print(30_001..30_011);
    let expected = |from: u32| plain(from..30_011).replace("line 30000", "part part line 30000");
    for (tail, once) in [(11, true), (12, true), (1000, true), (25_000, false)] {
        let request = LogRequest { tail: Some(tail), ..LogRequest::default() };
        let mut reader = Reader::open(&log.path(), request).expect("the log");
        assert_eq!(matches!(reader.source, Source::Unpacked(_)), once, "{tail}");
        assert_eq!(read_all(&mut reader), expected(30_011 - u32::try_from(tail).unwrap()), "{tail}");
    }
    // All of it belongs to the tail, by less than what is kept.
    let whole = LogRequest { tail: Some(100_000), ..LogRequest::default() };
    assert_eq!(log.read(&whole), expected(0));
}

#[test]
fn parts_of_a_line_are_one_line() {
    let log = Log::new();
    log.print(0..2);
    let part = |text: &str| format!("{{\"log\":\"{text}\",\"stream\":\"stdout\",\"time\":\"1970-01-01T00:00:02Z\"}}\n");
    log.append(&(part("a") + &part("b") + &part("c\\n") + &part("not ended")));
    let read = |tail| log.read(&LogRequest { tail: Some(tail), timestamps: true, ..LogRequest::default() });
    assert_eq!(read(1), "1970-01-01T00:00:02.000000000Z not ended");
    assert_eq!(read(2), "1970-01-01T00:00:02.000000000Z abc\n1970-01-01T00:00:02.000000000Z not ended");
    assert!(read(3).starts_with("1970-01-01T00:00:01.250000000Z line 1\n"));
}

#[test]
fn damaged_entries_are_skipped() {
    let log = Log::new();
    log.print(0..1);
    log.append("garbage\n{\"log\":\n\0\0\0\0");
    log.append(&"x".repeat(MAX_ENTRY_BYTES + 7));
    log.append("\n");
    log.print(1..3);
    // A crash has cut the last entry's newline off; its own text is whole.
    log.append(line(3).trim_end());
    assert_eq!(log.read(&LogRequest::default()), plain(0..4));
    assert_eq!(log.read(&LogRequest { tail: Some(4), ..LogRequest::default() }), plain(0..4));
    log.append("\n{\"log\":\"cut in the mid");
    assert_eq!(log.read(&LogRequest::default()), plain(0..4));
}

#[test]
fn cri_format() {
    let log = Log::new();
    log.append("1970-01-01T00:00:01.5Z stdout P half \n1970-01-01T00:00:01.6Z stdout F whole\n1970-01-01T00:00:02Z stderr F \n");
    assert_eq!(log.read(&LogRequest::default()), "half whole\n\n");
    assert_eq!(log.read(&LogRequest { tail: Some(2), ..LogRequest::default() }), "half whole\n\n");
}

fn following(log: &Log, tail: Option<u64>) -> Reader {
    Reader::open(&log.path(), LogRequest { follow: true, tail, ..LogRequest::default() }).expect("the log")
}

#[test]
fn following_over_a_rotation() {
    let log = Log::new();
    log.print(0..3);
    let mut reader = following(&log, Some(1));
    assert_eq!(read_all(&mut reader), plain(2..3));
    // An entry that is being written is waited for.
    let (head, rest) = (&line(3)[..20], &line(3)[20..]);
    log.append(head);
    assert_eq!(read_all(&mut reader), "");
    log.append(rest);
    assert_eq!(read_all(&mut reader), plain(3..4));
    log.print(4..6);
    log.rotate();
    assert_eq!(read_all(&mut reader), plain(4..6));
    log.print(6..8);
    log.rotate();
    log.print(8..9);
    log.rotate();
    log.print(9..10);
    assert_eq!(read_all(&mut reader), plain(6..10));
    // Compressed before the follower came to its end: nothing is printed twice.
    log.print(10..11);
    log.rotate();
    let text = fs::read(log.rotated(".1")).unwrap();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&text).unwrap();
    fs::write(log.rotated(".1.gz"), gzip.finish().unwrap()).unwrap();
    fs::remove_file(log.rotated(".1")).unwrap();
    log.print(11..12);
    assert_eq!(read_all(&mut reader), plain(10..12));
}

#[test]
fn a_truncated_file_is_read_from_its_start() {
    let log = Log::new();
    log.print(0..5);
    let mut reader = following(&log, None);
    assert_eq!(read_all(&mut reader), plain(0..5));
    fs::write(log.path(), "").unwrap();
    assert_eq!(read_all(&mut reader), "");
    log.print(5..6);
    assert_eq!(read_all(&mut reader), plain(5..6));
}

proptest! {
    /// However lines are spread over files and parts: the last ones are those that a reading of all ends in.
    #[test]
    fn the_tail_is_the_end_of_all(
        files in prop::collection::vec(prop::collection::vec((0usize..300, any::<bool>()), 0..20), 1..4),
        tail in 0u64..40,
        timestamps in any::<bool>(),
    ) {
        let log = Log::new();
        log.append("");
        for (number, parts) in files.iter().enumerate() {
            if number > 0 {
                log.rotate();
            }
            for (length, ends) in parts {
                // Docker writes no entry for nothing: a part of a line is not empty.
                let text = if *ends { "x".repeat(*length) + "\\n" } else { "x".repeat((*length).max(1)) };
                log.append(&format!("{{\"log\":\"{text}\",\"stream\":\"stderr\",\"time\":\"1970-01-01T00:00:00Z\"}}\n"));
            }
        }
        let all = log.read(&LogRequest { timestamps, ..LogRequest::default() });
        let lines: Vec<&str> = all.split_inclusive('\n').collect();
        let wanted = lines[lines.len().saturating_sub(usize::try_from(tail).unwrap())..].concat();
        let got = log.read(&LogRequest { tail: Some(tail), timestamps, ..LogRequest::default() });
        prop_assert_eq!(got, wanted);
    }
}

/// An entry of a log in either format: what was printed, and whether the line ends there.
fn any_entry() -> impl Strategy<Value = String> {
    ("[a-z ]{0,12}", any::<bool>(), 0u8..4).prop_map(|(text, ends, format)| match format {
        0 => {
            let end = if ends { "\\n" } else { "" };
            format!("{{\"log\":\"{text}{end}\",\"stream\":\"stdout\",\"time\":\"2026-01-01T00:00:00Z\"}}\n")
        }
        1 => "neither format\n".to_owned(),
        _ => format!("2026-01-01T00:00:00Z stderr {} {text}\n", if ends { "F" } else { "P" }),
    })
}

proptest! {
    /// Lines in parts, in either format, over a rotation, with or without a last newline: what comes out is what the
    /// entries say one after the other.
    #[test]
    fn entries_are_written_in_order(
        older in prop::collection::vec(any_entry(), 0..8),
        newer in prop::collection::vec(any_entry(), 0..8),
        cut in any::<bool>(),
        some in 0usize..40,
    ) {
        let log = Log::new();
        let (older, mut newer) = (older.concat(), newer.concat());
        if cut {
            newer.pop();
        }
        log.append(&older);
        log.rotate();
        log.append(&newer);
        let lines = older.split('\n').chain(newer.split('\n'));
        let mut all = Vec::new();
        lines.filter_map(|line| entry::parse(line.as_bytes())).for_each(|found| found.content.write(&mut all));
        let read = |request: LogRequest| crate::logs::read_to_end(&log.path(), request).unwrap();
        prop_assert_eq!(&read(LogRequest::default()), &all);
        let bytes = some.max(1);
        let limited = read(LogRequest { limit: Some(bytes as u64), ..LogRequest::default() });
        prop_assert_eq!(&limited[..], &all[..bytes.min(all.len())]);
        let tail = read(LogRequest { tail: Some(some as u64), ..LogRequest::default() });
        prop_assert!(all.ends_with(&tail));
        prop_assert!(tail.iter().filter(|b| **b == b'\n').count() <= some);
    }
}
