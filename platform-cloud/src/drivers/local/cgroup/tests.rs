use super::*;

const SOME: ClusterLimits = ClusterLimits {
    memory_bytes: Some(64 * 1024 * 1024),
    processes: Some(100),
    cpus: Some(1.5),
};

/// A fake cgroup root with the files of a kernel, which only stores what is written.
fn root(version: Version) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for controller in CONTROLLERS {
        let hierarchy = match version {
            Version::One => root.path().join(controller.name()),
            Version::Two => root.path().to_owned(),
        };
        fs::create_dir_all(&hierarchy).unwrap();
        fs::write(hierarchy.join(PROCESSES), "").unwrap();
    }
    root
}

fn read(root: &Path, file: &str) -> String {
    fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn of_version_1_each_controller_has_a_group_and_of_version_2_one_group_has_all() {
    for (version, files) in [
        (
            Version::One,
            &[
                (
                    "memory/drover/000000000000-7/memory.limit_in_bytes",
                    "67108864",
                ),
                ("memory/drover/000000000000-7/cgroup.procs", "0"),
                ("pids/drover/000000000000-7/pids.max", "100"),
                ("pids/drover/000000000000-7/cgroup.procs", "0"),
                ("cpu/drover/000000000000-7/cpu.cfs_period_us", "100000"),
                ("cpu/drover/000000000000-7/cpu.cfs_quota_us", "150000"),
                ("cpu/drover/000000000000-7/cgroup.procs", "0"),
            ][..],
        ),
        (
            Version::Two,
            &[
                ("drover/000000000000-7/memory.max", "67108864"),
                ("drover/000000000000-7/pids.max", "100"),
                ("drover/000000000000-7/cpu.max", "150000 100000"),
                ("drover/000000000000-7/cgroup.procs", "0"),
                ("drover/cgroup.subtree_control", "+cpu"),
                ("cgroup.subtree_control", "+cpu"),
            ],
        ),
    ] {
        let root = root(version);
        let groups = Groups::over(version, root.path(), Uuid::nil(), &SOME).unwrap();
        let group = groups.unwrap().of(7);
        group.enter().unwrap();
        for (file, value) in files {
            assert_eq!(read(root.path(), file), *value, "{file}");
        }
        // The creator died before it set the limits.
        for part in &group.parts {
            fs::remove_dir_all(&part.path).unwrap();
            fs::create_dir(&part.path).unwrap();
        }
        group.enter().unwrap();
        for (file, value) in files {
            assert_eq!(read(root.path(), file), *value, "{file}");
        }
    }
}

#[test]
fn memory_is_limited_with_swap_where_there_is_any() {
    for (version, file, value) in [
        (Version::One, SWAP[1], "67108864"),
        (Version::Two, SWAP[0], "0"),
    ] {
        let root = root(version);
        let groups = Groups::over(version, root.path(), Uuid::nil(), &SOME);
        let group = groups.unwrap().unwrap().of(7);
        let memory = group.parts[0].path.clone();
        group.enter().unwrap();
        assert!(!memory.join(file).exists(), "no swap");
        fs::write(memory.join(file), "max").unwrap();
        group.enter().unwrap();
        assert_eq!(read(&memory, file), value);
    }
}

#[test]
fn a_platform_within_limits_is_told_by_its_groups_and_those_around_them() {
    let unit = "0::/system.slice/x.service\n";
    for (version, own, group, file) in [
        (Version::Two, unit, "system.slice", "memory.max"),
        (Version::Two, unit, "system.slice/x.service", "pids.max"),
        (
            Version::One,
            "4:memory:/a\n8:pids:/b/c\n",
            "pids/b",
            "pids.max",
        ),
        (
            Version::One,
            "4:memory:/a\n",
            "memory/a",
            "memory.limit_in_bytes",
        ),
        (
            Version::One,
            "2:cpu,cpuacct:/a\n",
            "cpu/a",
            "cpu.cfs_quota_us",
        ),
    ] {
        let root = root(version);
        let group = root.path().join(group);
        fs::create_dir_all(&group).unwrap();
        for none in ["max", "-1", "9223372036854771712"] {
            fs::write(group.join(file), none).unwrap();
            assert_eq!(own_limit(version, root.path(), own), None, "{own}: {none}");
        }
        fs::write(group.join(file), "4096").unwrap();
        assert_eq!(own_limit(version, root.path(), own), Some(group), "{own}");
    }
}

#[test]
fn what_is_there_has_the_limits_of_now_also_if_there_are_none_any_more() {
    let root = root(Version::Two);
    let over =
        |limits: &ClusterLimits| Groups::over(Version::Two, root.path(), Uuid::nil(), limits);
    over(&SOME).unwrap().unwrap().of(7).enter().unwrap();
    let none = ClusterLimits {
        processes: None,
        ..ClusterLimits::default()
    };
    assert!(over(&none).unwrap().is_none());
    for (file, value) in [
        ("drover/000000000000-7/memory.max", "max"),
        ("drover/000000000000-7/pids.max", "max"),
        ("drover/000000000000-7/cpu.max", "max 100000"),
    ] {
        assert_eq!(read(root.path(), file), value, "{file}");
    }
}

#[test]
fn a_kernel_that_does_not_limit_something_is_an_error_that_says_what() {
    let root = root(Version::One);
    fs::remove_dir_all(root.path().join("pids")).unwrap();
    let error = Groups::over(Version::One, root.path(), Uuid::nil(), &SOME).unwrap_err();
    assert!(error.to_string().contains("does not limit pids"), "{error}");
}

#[test]
fn a_death_of_want_of_memory_is_told_once() {
    let root = root(Version::Two);
    let groups = Groups::over(Version::Two, root.path(), Uuid::nil(), &SOME)
        .unwrap()
        .unwrap();
    let group = groups.of(7);
    group.enter().unwrap();
    let events = root.path().join("drover/000000000000-7/memory.events");
    let full = std::cell::Cell::new(9);
    let killed = |count: u64| {
        let text = format!("oom {}\noom_kill {count}\n", full.get());
        fs::write(&events, text).unwrap();
    };
    killed(3);
    groups.know(&group);
    assert_eq!(groups.death(&group), None);
    killed(5);
    for told in [true, true, false] {
        let said = groups.death(&group);
        assert_eq!(said.is_some_and(|said| said.contains("67108864")), told);
    }
    // The group was removed and created again.
    killed(1);
    assert_eq!(groups.death(&group), None);
    // The machine as a whole ran out of memory.
    full.set(0);
    killed(2);
    let said = groups.death(&group).unwrap();
    assert!(!said.contains("cluster_limits"), "{said}");
}

#[test]
fn limits_with_which_no_node_starts_are_refused_with_their_field() {
    for (limits, field) in [
        (
            ClusterLimits {
                memory_bytes: Some(1),
                ..SOME
            },
            "memory_bytes",
        ),
        (
            ClusterLimits {
                processes: Some(0),
                ..SOME
            },
            "processes",
        ),
        (
            ClusterLimits {
                processes: Some(5_000_000),
                ..SOME
            },
            "processes",
        ),
        (
            ClusterLimits {
                cpus: Some(f64::NAN),
                ..SOME
            },
            "cpus",
        ),
    ] {
        let error = limits.check().unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    SOME.check().unwrap();
}
