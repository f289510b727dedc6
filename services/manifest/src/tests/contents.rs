//! User data and secrets in manifests: their sources, and that no diagnostic shows them.

use drover_core::error::Violation;
use drover_proto::orchestrator::v1::{
    BootstrapSource, Cluster, ClusterSpec, GroupSpec, SecretKeyRef, SecretPurpose, bootstrap_source,
};

use super::{cluster, decode, decode_file, errors, group};
use crate::{Diagnostics, Objects, encode, yaml};

#[test]
fn user_data_is_read_from_a_file_beside_the_manifest() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("m")).unwrap();
    std::fs::write(dir.path().join("boot.sh"), "#!/bin/sh\n").unwrap();
    let manifest = dir.path().join("m/x.yaml");
    std::fs::write(
        &manifest,
        group("bootstrap: {userDataFrom: {file: ../boot.sh}}"),
    )
    .unwrap();
    let objects = decode_file(&manifest);
    let group = objects.clusters[0]
        .object
        .spec
        .clone()
        .unwrap()
        .groups
        .remove(0);
    assert_eq!(
        group.bootstrap.unwrap().source,
        Some(bootstrap_source::Source::Text("#!/bin/sh\n".into()))
    );

    std::fs::write(dir.path().join("boot.sh"), [0xff, 0, b'x']).unwrap();
    let binary = decode_file(&manifest);
    let group = &binary.clusters[0].object.spec.as_ref().unwrap().groups[0];
    assert_eq!(
        group.bootstrap.as_ref().unwrap().source,
        Some(bootstrap_source::Source::Binary(vec![0xff, 0, b'x']))
    );

    std::fs::write(dir.path().join("boot.sh"), vec![b'x'; 600 * 1024]).unwrap();
    let text = decode_file(&manifest).diagnostics.render("");
    assert!(text.contains("larger than 512 KiB"), "{text}");
}

#[test]
fn what_reads_show_of_user_data_can_be_applied_again() {
    let digest = "ab".repeat(32);
    let shown = Cluster {
        name: "x".into(),
        spec: Some(ClusterSpec {
            groups: vec![GroupSpec {
                name: "db".into(),
                bootstrap: Some(BootstrapSource {
                    render: true,
                    source: Some(bootstrap_source::Source::Sha256(digest.clone())),
                }),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    };
    let text = yaml::write(&encode::cluster(&shown).unwrap());
    assert!(
        text.contains(&format!("userDataSha256: {digest}")),
        "{text}"
    );
    assert_eq!(cluster(&text), shown);
}

#[test]
fn user_data_has_one_source() {
    for (fields, message) in [
        ("userDataFrom: {}", "no source"),
        (
            "userDataFrom: {file: a, secretKeyRef: {name: a, key: b}}",
            "more than one source",
        ),
        ("userData: a, userDataFrom: {file: b}", "exclude each other"),
        (
            "userData: a, secretKeyRef: {name: a, key: b}",
            "exclude each other",
        ),
        (
            "userDataFrom: {file: nowhere.yaml}",
            "cannot read nowhere.yaml",
        ),
    ] {
        let text = errors(&group(&format!("bootstrap: {{{fields}}}")));
        assert!(text.contains(message), "{message}: {text}");
    }
    for key in [
        "secretKeyRef: {name: a, key: b}",
        "userDataFrom: {secretKeyRef: {name: a, key: b}}",
    ] {
        let cluster = cluster(&group(&format!("bootstrap: {{{key}}}")));
        let bootstrap = cluster.spec.unwrap().groups.remove(0).bootstrap.unwrap();
        let (name, key) = ("a".into(), "b".into());
        assert_eq!(
            bootstrap.source,
            Some(bootstrap_source::Source::SecretKey(SecretKeyRef {
                name,
                key
            }))
        );
    }
}

#[test]
fn no_error_shows_user_data() {
    for bootstrap in [
        "bootstrap: hunter2",
        "bootstrap: {userData: [hunter2]}",
        "bootstrap: {userDataBase64: hunter2!}",
        "bootstrap: {userData: hunter2, rendr: true}",
        "sise: 1, bootstrap: {userData: hunter2}",
    ] {
        let text = errors(&group(bootstrap));
        assert!(text.contains("1 error"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    let objects = decode(&group("size: 3, bootstrap: {userData: hunter2}"));
    let mut problems = Diagnostics::default();
    for field in ["spec.groups[0].bootstrap.text", "spec.groups[0].size"] {
        problems.push(objects.clusters[0].violation(&Violation {
            field: field.into(),
            description: "is wrong".into(),
        }));
    }
    let text = problems.render("");
    assert!(
        text.contains("2 errors") && !text.contains("hunter2"),
        "{text}"
    );
}

#[test]
fn no_error_shows_what_a_secret_says() {
    let text = errors(
        "apiVersion: drover.dev/v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: hunter2, b: 4711, c: [hunter3]}\nextra: hunter4\n",
    );
    assert!(text.contains("3 errors"), "{text}");
    for secret in ["hunter2", "4711", "hunter3", "hunter4"] {
        assert!(!text.contains(secret), "{text}");
    }
    let text = errors("kind: Secret\nstringData: {a: hunter2\n");
    assert!(!text.contains("hunter2"), "{text}");
    // In the place of its key, in a wrong place, and under unknown keys.
    for rest in [
        "kind: Secret\nmetadata: {name: s}\nstringData: {\"hunter2 and more\"}",
        "kind: Secret\nmetadata: {name: s}\nstringData: {hunter2-and-more}",
        "kind: Platform\nmetadata: {name: s}\nspec: {endpoint: \"https://x\", token: hunter2}",
        "kind: Platform\nmetadata: {name: s}\nspec: {endpoint: \"https://x\", API_TOKEN: hunter2}",
        "kind: Platform\nmetadata: {name: s}\nspec:\n  endpoint: https://x\n  tls: {client-key: hunter2}",
        "kind: Cluster\nmetadata: {name: s}\nspec:\n  groups:\n    web    userData: hunter2",
        "kind: Cluster\nmetadata: {name: s}\nspec:\n  groups: {}\n  7/hunter2 userData: more",
    ] {
        let text = errors(&format!("apiVersion: drover.dev/v1\n{rest}\n"));
        assert!(
            text.contains("1 error") && !text.contains("hunter2"),
            "{text}"
        );
    }
    let text = errors(&group("bootstrap: {userData: hunter2, rendr: true}"));
    assert!(
        text.contains("rendr") && !text.contains("hunter2"),
        "{text}"
    );
}

#[test]
fn a_secret_takes_texts_bytes_and_files_and_names_what_is_wrong() {
    use drover_proto::orchestrator::v1::secret_value::Value as Content;
    let directory = tempfile::tempdir().unwrap();
    let manifest = directory.path().join("s.yaml");
    std::fs::write(directory.path().join("join.sh"), "echo hunter2\n").unwrap();
    std::fs::write(directory.path().join("raw"), [0, 255]).unwrap();
    let head = "apiVersion: drover.dev/v1\nkind: Secret\nmetadata: {name: join}\n";
    let read = |rest: &str| {
        std::fs::write(&manifest, format!("{head}{rest}")).unwrap();
        decode_file(&manifest)
    };
    let objects = read(
        "stringData: {a: x}\ndata: {b: eQ==}\ndataFrom:\n  init: {file: join.sh}\n  raw: {file: raw}\n",
    );
    assert!(
        objects.diagnostics.is_empty(),
        "{}",
        objects.diagnostics.render("")
    );
    let purpose = |objects: &Objects| objects.secrets[0].object.purpose();
    assert_eq!(purpose(&objects), SecretPurpose::Unspecified);
    for (word, wanted) in [
        ("workload", SecretPurpose::Workload),
        ("probe", SecretPurpose::Probe),
        ("platform", SecretPurpose::Platform),
    ] {
        let objects = read(&format!("purpose: {word}\nstringData: {{a: x}}\n"));
        assert!(objects.diagnostics.is_empty());
        assert_eq!(purpose(&objects), wanted);
    }
    let data = &objects.secrets[0].object.data;
    let bytes = |key: &str| match data[key].value.clone().unwrap() {
        Content::Text(text) => text.into_bytes(),
        Content::Binary(data) => data,
        Content::Sha256(digest) => panic!("a digest: {digest}"),
    };
    assert_eq!((bytes("a"), bytes("b")), (b"x".to_vec(), b"y".to_vec()));
    assert_eq!(bytes("init"), b"echo hunter2\n");
    assert_eq!(bytes("raw"), [0, 255]);
    for (rest, place, words) in [
        (
            "dataFrom: {init: {file: gone.sh}}\n",
            "s.yaml:4:25",
            "cannot read gone.sh",
        ),
        (
            "dataFrom:\n  init: {fiel: join.sh}\n",
            "s.yaml:5:10",
            "did you mean `file`",
        ),
        (
            "stringData: {a: hunter2}\ndataFrom: {a: {file: join.sh}}\n",
            "s.yaml:5:12",
            "twice",
        ),
        (
            "purpose: platfrom\nstringData: {a: hunter2}\n",
            "s.yaml:4:1",
            "expected workload, probe or platform",
        ),
        ("data: {b: hunter2!}\n", "s.yaml:4:11", "base64"),
        (
            "strngData: {b: hunter2}\n",
            "s.yaml:4:1",
            "did you mean `stringData`",
        ),
    ] {
        let text = read(rest).diagnostics.render("");
        assert!(text.contains(place) && text.contains(words), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}
