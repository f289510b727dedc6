use std::collections::BTreeMap;

use drover_proto::common::v1::LabelRequirement;

use super::{
    syntax::{Cidr, Quantity},
    *,
};

#[test]
fn quantities_are_those_of_kubernetes() {
    let read = |text: &str| Quantity::read(text).unwrap();
    for (text, same) in [
        ("1", "1000m"),
        ("1.5", "1500m"),
        (".5", "500m"),
        ("2.", "2"),
        ("1Ki", "1024"),
        ("64Mi", "67108864"),
        ("1e3", "1k"),
        ("1E-3", "1m"),
        ("+1", "1"),
        ("0.0000000001", "1n"),
    ] {
        assert_eq!(read(text), read(same), "{text}");
    }
    assert!(read("999m") < read("1") && read("1G") < read("1Gi"));
    for text in [
        "",
        "m",
        ".",
        "1.2.3",
        "1 Gi",
        "1KB",
        "1kib",
        "1e",
        "1e1.5",
        "--1",
        "0x1",
        "1,5",
        "Inf",
        &"9".repeat(40),
    ] {
        assert!(Quantity::read(text).is_err(), "{text}");
    }
}

#[test]
fn an_exception_is_inside_of_its_range_and_smaller() {
    let holds =
        |range: &str, inner: &str| Cidr::read(range).unwrap().holds(Cidr::read(inner).unwrap());
    for (range, inner, expected) in [
        ("10.0.0.0/8", "10.1.0.0/16", true),
        ("10.0.0.0/8", "10.0.0.0/8", false),
        ("10.0.0.0/8", "11.0.0.0/16", false),
        ("10.1.0.0/16", "10.0.0.0/8", false),
        ("0.0.0.0/0", "255.255.255.255/32", true),
        ("::/0", "fd00::/8", true),
        ("::/0", "10.0.0.0/8", false),
    ] {
        assert_eq!(holds(range, inner), expected, "{range} {inner}");
    }
    for text in [
        "",
        "10.0.0.0",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/+8",
        "10.0.0.0/08",
        "10.0.0/8",
        "::/129",
    ] {
        assert!(Cidr::read(text).is_err(), "{text}");
    }
}

#[test]
fn names_are_those_of_kubernetes() {
    type Syntax = fn(&str) -> Result<(), String>;
    let long = "a".repeat(64);
    for (syntax, good, bad) in [
        (
            syntax::label as Syntax,
            &["a", "0", "a-b"][..],
            &["A", "-a", "a-", "a.b", "", &long][..],
        ),
        (syntax::label_1035, &["a", "a0"], &["0a", "a.b"]),
        (
            syntax::subdomain,
            &["a", "a.b", "0.0", &long],
            &["a..b", ".a", "a_b", "a.-b"],
        ),
        (
            syntax::port_name,
            &["http", "8x"],
            &["80", "a--b", "-a", "a-name-of-16-chr"],
        ),
        (
            syntax::host,
            &["a.example", "*.example"],
            &["*", "a.*", "10.0.0.1", "A"],
        ),
        (
            syntax::route,
            &["/", "/a.b/"],
            &["a", "//", "/./a", "/a/..", "/%2Fa"],
        ),
        (
            syntax::configuration_key,
            &["a", ".a", "A_b-c"],
            &[".", "..", "..a", "a/b", ""],
        ),
        (syntax::descending, &["a", "a/..b"], &["/a", "..", "a/../b"]),
        (syntax::variable, &["A", "a.b-c d"], &["", "a=b", "ü"]),
        (
            syntax::label_value,
            &["", "a", "A.b"],
            &["-a", "a b", &long],
        ),
    ] {
        for text in good {
            assert_eq!(syntax(text), Ok(()), "{text}");
        }
        for text in bad {
            assert!(syntax(text).is_err(), "{text}");
        }
    }
}

#[test]
fn selectors_are_written_in_one_order() {
    let one = |key: &str, values: &[&str]| LabelRequirement {
        key: key.to_owned(),
        operator: LabelOperator::In as i32,
        values: values.iter().map(|&value| value.to_owned()).collect(),
    };
    let mut selector = LabelSelector {
        match_labels: BTreeMap::new(),
        match_expressions: vec![
            one("b", &["2", "1", "2"]),
            one("a", &["1"]),
            one("b", &["1", "2"]),
        ],
    };
    let mut check = Check::default();
    check.selector("selector", Some(&mut selector));
    check.finish().unwrap();
    assert_eq!(
        selector.match_expressions,
        [one("a", &["1"]), one("b", &["1", "2"])]
    );
}

#[test]
fn a_namespace_that_is_left_out_is_the_default_and_others_stay() {
    let served = Served {
        default_namespace: "shop".into(),
        ..Served::default()
    };
    for (asked, expected) in [("", "shop"), ("bank", "bank")] {
        let request = api::GetPodRequest {
            namespace: asked.into(),
            name: "web".into(),
        };
        assert_eq!(named(request, &served).unwrap().namespace, expected);
    }
}

#[test]
fn a_script_is_standard_input_of_its_interpreter_and_no_argument() {
    let request = api::RunScriptRequest {
        pod: "web".into(),
        script: "date".into(),
        args: vec!["a b".into()],
        ..Default::default()
    };
    let (start, text) = script(request.clone(), &Served::default()).unwrap();
    assert_eq!(start.command, ["sh", "-s", "--", "a b"]);
    assert!(start.stdin && text == b"date");
    let request = api::RunScriptRequest {
        interpreter: vec!["python3".into(), "-".into()],
        ..request
    };
    let (start, _) = script(request, &Served::default()).unwrap();
    assert_eq!(start.command, ["python3", "-", "a b"]);
}
