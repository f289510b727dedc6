use super::*;
use crate::Reason;

const SECRET: &str = "Tr0ub4dor-Zebra-77-\"Quux\"/Vörtex_42";

fn hidden() -> Hidden {
    Hidden::default().secret(SECRET.as_bytes())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn percent(bytes: &[u8]) -> String {
    let one = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => (*byte as char).to_string(),
        _ => format!("%{byte:02X}"),
    };
    bytes.iter().map(one).collect()
}

fn base64(bytes: &[u8], digits: &[u8; 64], padded: bool) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let mut four = [0; 4];
        four[1..=three.len()].copy_from_slice(three);
        let bits = u32::from_be_bytes(four);
        for at in 0..=three.len() {
            text.push(digits[(bits >> (18 - 6 * at)) as usize & 63] as char);
        }
        if padded {
            text.extend(std::iter::repeat_n('=', 3 - three.len()));
        }
    }
    text
}

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

type Encoding = fn(&str) -> String;

const ENCODINGS: [(&str, Encoding); 12] = [
    ("plain", |it| it.to_owned()),
    ("hexadecimal", |it| hexadecimal(it.as_bytes())),
    ("capital hexadecimal", |it| {
        hexadecimal(it.as_bytes()).to_uppercase()
    }),
    ("base64", |it| base64(it.as_bytes(), STANDARD, true)),
    ("base64 without padding", |it| {
        base64(it.as_bytes(), STANDARD, false)
    }),
    ("base64 for URLs", |it| base64(it.as_bytes(), URL, true)),
    ("base64 for URLs without padding", |it| {
        base64(it.as_bytes(), URL, false)
    }),
    ("percent", |it| percent(it.as_bytes())),
    ("percent of base64", |it| {
        percent(base64(it.as_bytes(), STANDARD, true).as_bytes())
    }),
    ("JSON", |it| serde_json::to_string(it).unwrap()),
    ("JSON in ASCII", |it| {
        it.encode_utf16()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect()
    }),
    ("Debug", |it| format!("{it:?}")),
];

#[test]
fn a_content_and_its_parts_are_hidden_in_every_encoding() {
    let characters: Vec<char> = SECRET.chars().collect();
    for (name, encode) in ENCODINGS {
        for length in [PART, 13, characters.len()] {
            for part in characters.windows(length) {
                let part: String = part.iter().collect();
                let said = encode(&part);
                for around in [("said: ", " ."), ("abc", "xyz"), ("", "")] {
                    let text = format!("{}{said}{}", around.0, around.1);
                    let clean = hidden().text(&text).into_owned();
                    assert!(clean.contains(HIDDEN), "{name}: {text}");
                    assert!(!clean.contains(&said), "{name}: {clean}");
                }
            }
        }
    }
}

#[test]
fn what_stands_between_the_characters_does_not_help() {
    for between in ["-", " ", ", ", "\n", "..", "'"] {
        let said: Vec<String> = SECRET.chars().map(String::from).collect();
        let text = said.join(between);
        let clean = hidden().text(&text).into_owned();
        assert!(clean.len() < HIDDEN.len() + 2 * PART, "{clean}");
    }
}

#[test]
fn what_has_nothing_of_it_stays_as_it_is() {
    for text in [
        "",
        "template orders.yaml, line 3, column 7: undefined value",
        "no capacity in eu-central-1a; again in 30s \\ %41 &amp; \\u00zz %zz &#xffffffff;",
        "0123456789abcdef0123456789abcdef",
        "Tr0ub4d",
        "日本語のテキスト",
    ] {
        assert!(matches!(hidden().text(text), Cow::Borrowed(_)), "{text}");
    }
    let nothing = Hidden::default();
    assert!(nothing.is_empty());
    assert_eq!(nothing.text(SECRET), SECRET);
}

#[test]
fn words_of_a_script_are_no_secret_and_its_values_are() {
    let script = "#!/bin/sh\n# template of the database: no capacity is left for it\nexport TOKEN=4f9a-77Qx\n";
    let hidden = Hidden::default().script(script.as_bytes());
    for said in ["template web: no capacity", "the database is not there"] {
        assert_eq!(hidden.text(said), said);
    }
    assert_eq!(
        hidden.text("it says 4f9a-77Qx"),
        format!("it says {HIDDEN}")
    );
    let long = hidden.text("so: no capacity is left for it").into_owned();
    assert!(!long.contains("capacity is left"), "{long}");
    // Words of a secret are redacted.
    let words = Hidden::default().secret(b"correct horse");
    assert_eq!(words.text("rrect hor"), HIDDEN);
}

#[test]
fn short_contents_are_hidden_whole() {
    let hidden = Hidden::default().secret(b"4711\n").secret(b"x");
    assert_eq!(hidden.text("pin 4711, x"), format!("pin {HIDDEN}, x"));
    assert_eq!(hidden.text("471 1"), "471 1");
    assert_eq!(hidden.text("34373131"), HIDDEN, "in hexadecimal");
}

#[test]
fn every_text_of_an_error_is_clean() {
    let error = Error::new(Reason::Precondition, format!("it says {SECRET}"))
        .with_violation(format!("spec.{SECRET}"), format!("has {SECRET}"))
        .with_resource(SECRET, SECRET)
        .with_metadata("file", SECRET)
        .with_metadata(SECRET, 7);
    let clean = hidden().error(error.clone());
    assert_eq!(clean.reason(), error.reason());
    assert_eq!(clean.message(), format!("it says {HIDDEN}"));
    assert_eq!(clean.fields()[0].field, format!("spec.{HIDDEN}"));
    assert_eq!(clean.fields()[0].description, format!("has {HIDDEN}"));
    assert_eq!(clean.resource(), Some((HIDDEN, HIDDEN)));
    assert_eq!(clean.metadata()["file"], HIDDEN);
    assert_eq!(clean.metadata()[HIDDEN], "7");
    let other = Error::new(Reason::NoCapacity, "none").with_metadata("a", 1);
    assert_eq!(hidden().error(other.clone()), other);
}

#[test]
fn the_largest_contents_and_texts_are_gone_through_once() {
    // Repetitive content is the worst case for a search: a quadratic one would not finish.
    let mut hidden = Hidden::default();
    for byte in 0..32u8 {
        hidden = hidden.secret(&vec![b'a' + byte % 4; 64 * 1024]);
    }
    let text = "a".repeat(1024 * 1024);
    let clean = hidden.text(&text);
    assert_eq!(clean, HIDDEN);
    assert_eq!(format!("{hidden:?}"), "Hidden(32)");
}

#[test]
fn no_text_makes_it_fail() {
    let pieces = [
        "%",
        "\\u",
        "{",
        "}",
        "&#",
        ";",
        "é",
        "a",
        "0",
        "=",
        "\\",
        "Tr0ub4dor",
    ];
    let mut seed = 7usize;
    for _ in 0..5_000 {
        let mut text = String::new();
        for _ in 0..12 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push_str(pieces[(seed >> 33) % pieces.len()]);
        }
        let clean = hidden().text(&text).into_owned();
        assert!(!clean.contains("Tr0ub4do"), "{text}: {clean}");
    }
}
