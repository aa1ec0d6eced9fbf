//! Rewrites the links of an HTML page as it passes: attributes that hold URLs, as upstream's proxy transport. The rest of
//! the page stays byte for byte. Pure.

/// A longer tag is passed on as it is.
const MAX_TAG_BYTES: usize = 64 << 10;

/// The attributes of an element that hold URLs.
fn url_attributes(element: &str) -> &'static [&'static str] {
    match element {
        "a" | "area" | "base" | "link" => &["href"],
        "applet" => &["codebase"],
        "audio" | "embed" | "script" | "source" => &["src"],
        "blockquote" | "del" | "ins" | "q" => &["cite"],
        "body" => &["background"],
        "button" => &["formaction"],
        "command" => &["icon"],
        "form" => &["action"],
        "frame" | "iframe" => &["longdesc", "src"],
        "head" => &["profile"],
        "html" => &["manifest"],
        "img" => &["longdesc", "src", "usemap"],
        "input" => &["src", "usemap", "formaction"],
        "object" => &["classid", "codebase", "data", "usemap"],
        "video" => &["poster", "src"],
        _ => &[],
    }
}

/// Whether what follows a tag is text up to its end tag.
fn is_raw_text(element: &str) -> bool {
    matches!(
        element,
        "iframe" | "noembed" | "noframes" | "plaintext" | "script" | "style" | "textarea" | "title" | "xmp"
    )
}

/// What the next bytes are.
#[derive(Debug)]
enum State {
    Markup,
    Comment,
    /// Text up to the end tag of this element.
    RawText(String),
}

/// A page that passes.
#[derive(Debug)]
pub(super) struct Page {
    state: State,
    /// What may be the beginning of a tag.
    pending: Vec<u8>,
}

/// An attribute of a tag: its name, and where its value is, quotes included.
struct Attribute {
    name: String,
    value: std::ops::Range<usize>,
}

struct Tag {
    name: String,
    attributes: Vec<Attribute>,
    /// Behind `>`.
    end: usize,
}

impl Page {
    pub(super) fn new() -> Self {
        Self { state: State::Markup, pending: Vec::new() }
    }

    /// Takes more of the page and gives what of it is known to be complete. `url` gives the new URL, or `None` for one that
    /// stays.
    pub(super) fn feed(&mut self, bytes: &[u8], url: &dyn Fn(&str) -> Option<String>) -> Vec<u8> {
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let (mut out, mut at) = (Vec::with_capacity(pending.len()), 0);
        while at < pending.len() {
            let rest = &pending[at..];
            let Some(taken) = self.step(rest, &mut out, url) else { break };
            at += taken;
        }
        self.pending = pending[at..].to_vec();
        out
    }

    /// The end of the page.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }

    /// Takes one piece; `None` when more bytes are needed to know what it is.
    fn step(&mut self, rest: &[u8], out: &mut Vec<u8>, url: &dyn Fn(&str) -> Option<String>) -> Option<usize> {
        let (end, next) = match &self.state {
            State::Comment => match find(rest, b"-->") {
                Some(at) => (at + 3, Some(State::Markup)),
                None => (before_tail(rest, 2)?, None),
            },
            State::RawText(element) => match find_end_tag(rest, element) {
                Some(at) => (at, Some(State::Markup)),
                None => (before_tail(rest, element.len() + 2)?, None),
            },
            State::Markup => match rest.iter().position(|byte| *byte == b'<') {
                None => (rest.len(), None),
                Some(0) => return self.markup(rest, out, url),
                Some(at) => (at, None),
            },
        };
        out.extend_from_slice(&rest[..end]);
        if let Some(next) = next {
            // The end tag of raw text is markup, which must not be taken for text again.
            self.state = next;
        }
        Some(end)
    }

    /// Takes what begins with `<`.
    fn markup(&mut self, rest: &[u8], out: &mut Vec<u8>, url: &dyn Fn(&str) -> Option<String>) -> Option<usize> {
        const COMMENT: &[u8] = b"<!--";
        if rest.starts_with(COMMENT) {
            // Its dashes may be those of its end.
            self.state = State::Comment;
            out.extend_from_slice(b"<!");
            return Some(2);
        }
        if COMMENT.starts_with(rest) {
            return None;
        }
        if !rest[1].is_ascii_alphabetic() {
            out.push(b'<');
            return Some(1);
        }
        let Some(tag) = parse_tag(rest) else {
            if rest.len() <= MAX_TAG_BYTES {
                return None;
            }
            out.push(b'<');
            return Some(1);
        };
        let mut from = 0;
        let attributes = url_attributes(&tag.name);
        for attribute in tag.attributes.iter().filter(|attribute| attributes.contains(&attribute.name.as_str())) {
            let Some(changed) = rewritten(&rest[attribute.value.clone()], url) else { continue };
            out.extend_from_slice(&rest[from..attribute.value.start]);
            out.extend_from_slice(changed.as_bytes());
            from = attribute.value.end;
        }
        out.extend_from_slice(&rest[from..tag.end]);
        if is_raw_text(&tag.name) {
            self.state = State::RawText(tag.name);
        }
        Some(tag.end)
    }
}

/// Where a text is.
fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// All but a tail in which what is looked for may begin; `None` if that is all.
fn before_tail(bytes: &[u8], tail: usize) -> Option<usize> {
    bytes.len().checked_sub(tail).filter(|length| *length > 0)
}

/// Where the end tag of an element begins.
fn find_end_tag(bytes: &[u8], element: &str) -> Option<usize> {
    let length = element.len() + 2;
    bytes.windows(length + 1).position(|window| {
        window.starts_with(b"</")
            && window[2..length].eq_ignore_ascii_case(element.as_bytes())
            && (is_space(window[length]) || matches!(window[length], b'/' | b'>'))
    })
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0c)
}

/// Reads a start tag, which begins with `<` and a letter; `None` if it is not complete.
fn parse_tag(bytes: &[u8]) -> Option<Tag> {
    let word = |mut at: usize, ends: &dyn Fn(u8) -> bool| {
        let from = at;
        while !ends(*bytes.get(at)?) {
            at += 1;
        }
        Some((String::from_utf8_lossy(&bytes[from..at]).to_ascii_lowercase(), at))
    };
    let skip = |mut at: usize, skipped: &dyn Fn(u8) -> bool| {
        while skipped(*bytes.get(at)?) {
            at += 1;
        }
        Some(at)
    };
    let (name, mut at) = word(1, &|byte| is_space(byte) || matches!(byte, b'/' | b'>'))?;
    let mut attributes = Vec::new();
    loop {
        at = skip(at, &|byte| is_space(byte) || byte == b'/')?;
        if bytes[at] == b'>' {
            return Some(Tag { name, attributes, end: at + 1 });
        }
        // An equals sign may begin a name.
        let from = at;
        let (_, end) = word(at + 1, &|byte| is_space(byte) || matches!(byte, b'/' | b'>' | b'='))?;
        let name = String::from_utf8_lossy(&bytes[from..end]).to_ascii_lowercase();
        at = skip(end, &is_space)?;
        if bytes[at] != b'=' {
            continue;
        }
        at = skip(at + 1, &is_space)?;
        let start = at;
        let quote = bytes[at];
        at = match quote {
            b'"' | b'\'' => word(at + 1, &|byte| byte == quote)?.1 + 1,
            _ => word(at, &|byte| is_space(byte) || byte == b'>')?.1,
        };
        // Of two of the same name the first counts.
        attributes.push(Attribute { name, value: start..at });
    }
}

/// The new value of an attribute, in quotes; `None` if it stays.
fn rewritten(value: &[u8], url: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    let text = ['"', '\''].into_iter().find_map(|q| text.strip_prefix(q)?.strip_suffix(q)).unwrap_or(text);
    let plain = unescaped(text)?;
    let changed = url(&plain).filter(|changed| *changed != plain)?;
    Some(format!("\"{}\"", escaped(&changed)))
}

/// A value without its character references; `None` for references that URLs have no need of.
fn unescaped(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        // `&` of a query, or the beginning of a reference.
        let Some((reference, after)) = rest[1..].split_once(';').filter(|(name, _)| is_reference(name)) else {
            out.push('&');
            rest = &rest[1..];
            continue;
        };
        out.push(character(reference)?);
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

fn is_reference(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().enumerate().all(|(at, byte)| byte.is_ascii_alphanumeric() || (at == 0 && byte == b'#'))
}

fn character(reference: &str) -> Option<char> {
    if let Some(number) = reference.strip_prefix('#') {
        let hex = number.strip_prefix(['x', 'X']);
        return char::from_u32(hex.map_or_else(|| number.parse(), |hex| u32::from_str_radix(hex, 16)).ok()?);
    }
    Some(match reference {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "sol" => '/',
        "colon" => ':',
        "quest" => '?',
        "equals" => '=',
        "num" => '#',
        _ => return None,
    })
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '\'' => out.push_str("&#39;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\r' => out.push_str("&#13;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn below_p(url: &str) -> Option<String> {
        url.starts_with('/').then(|| format!("/p{url}"))
    }

    /// The page, fed in chunks of a size.
    fn pass(page: &str, size: usize) -> String {
        let (mut passing, mut out) = (Page::new(), Vec::new());
        for chunk in page.as_bytes().chunks(size) {
            out.extend(passing.feed(chunk, &below_p));
        }
        out.extend(passing.finish());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn links_are_rewritten_and_nothing_else() {
        for (page, wanted) in [
            (r#"<a href="/rewriteme">test</a>"#, r#"<a href="/p/rewriteme">test</a>"#),
            ("<!DOCTYPE html><A HREF='/x' class=b>/x</A>", "<!DOCTYPE html><A HREF=\"/p/x\" class=b>/x</A>"),
            ("<img src=/i.png alt=\"a>b\"/>", "<img src=\"/p/i.png\" alt=\"a>b\"/>"),
            ("<img src=/i/>", "<img src=\"/p/i/\">"),
            (r#"<form action="/f?a=1&amp;b=2">"#, r#"<form action="/p/f?a=1&amp;b=2">"#),
            (r#"<a href="/f?a=1&b=2">"#, r#"<a href="/p/f?a=1&amp;b=2">"#),
            (r#"<a href="/&unknown;">"#, r#"<a href="/&unknown;">"#),
            (r#"<a href="&#x2f;x" title="/x">"#, r#"<a href="/p/x" title="/x">"#),
            (r#"<a href="rel" href = "/second">"#, r#"<a href="rel" href = "/p/second">"#),
            ("<!--><a href='/x'>", "<!--><a href=\"/p/x\">"),
            ("<!-- <a href='/x'> --><a href='/x'>", "<!-- <a href='/x'> --><a href=\"/p/x\">"),
            (
                "<script src='/s'>if (a<b) '<a href=\"/x\">'</script><link href='/l'>",
                "<script src=\"/p/s\">if (a<b) '<a href=\"/x\">'</script><link href=\"/p/l\">",
            ),
            ("<style>a < b</style ><a href='/x'>", "<style>a < b</style ><a href=\"/p/x\">"),
            (
                "<title><a href='/x'></titles></TITLE><a href='/x'>",
                "<title><a href='/x'></titles></TITLE><a href=\"/p/x\">",
            ),
            ("a < b <3 </a> <", "a < b <3 </a> <"),
            ("<a href=\"/unfinished", "<a href=\"/unfinished"),
            ("<video poster='/p' src='/v' x></video>", "<video poster=\"/p/p\" src=\"/p/v\" x></video>"),
            ("<div href='/x' src='/y'>", "<div href='/x' src='/y'>"),
        ] {
            for size in [1, 2, 3, 7, page.len()] {
                assert_eq!(pass(page, size), wanted, "in chunks of {size}");
            }
        }
    }

    #[test]
    fn a_tag_without_an_end_is_not_kept_for_ever() {
        let page = format!("<a href=\"{}", "x".repeat(3 * MAX_TAG_BYTES));
        let mut passing = Page::new();
        let out = passing.feed(page.as_bytes(), &below_p);
        assert!(out.len() + passing.finish().len() == page.len() && !out.is_empty());
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter_and_without_links_nothing_changes(
            page in "[<>/!aA='\" \\-s]{0,60}(<(script|a|title)[ >])?[<>/!aA='\" \\-s]{0,40}", size in 1usize..9,
        ) {
            prop_assert_eq!(pass(&page, size), pass(&page, page.len().max(1)));
            let (mut same, mut out) = (Page::new(), Vec::new());
            out.extend(same.feed(page.as_bytes(), &|_| None));
            out.extend(same.finish());
            prop_assert_eq!(String::from_utf8(out).unwrap(), page);
        }
    }
}
