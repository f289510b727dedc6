use drover_templates::EmbeddedFile;

/// The built-in templates of addons.
pub(super) const CATALOGUE: &[EmbeddedFile] = &[
    EmbeddedFile {
        name: "index.yaml",
        content: include_str!("../../catalogue/addons/index.yaml"),
    },
    EmbeddedFile {
        name: "parts.j2",
        content: include_str!("../../catalogue/addons/parts.j2"),
    },
    EmbeddedFile {
        name: "load-balancer.yaml",
        content: include_str!("../../catalogue/addons/load-balancer.yaml"),
    },
    EmbeddedFile {
        name: "load-balancer.sh.j2",
        content: include_str!("../../catalogue/addons/load-balancer.sh.j2"),
    },
    EmbeddedFile {
        name: "haproxy.cfg.j2",
        content: include_str!("../../catalogue/addons/haproxy.cfg.j2"),
    },
    EmbeddedFile {
        name: "jump-host.yaml",
        content: include_str!("../../catalogue/addons/jump-host.yaml"),
    },
    EmbeddedFile {
        name: "jump-host.sh.j2",
        content: include_str!("../../catalogue/addons/jump-host.sh.j2"),
    },
    EmbeddedFile {
        name: "host.sh.j2",
        content: include_str!("../../catalogue/addons/host.sh.j2"),
    },
    EmbeddedFile {
        name: "ssh-config.j2",
        content: include_str!("../../catalogue/addons/ssh-config.j2"),
    },
    EmbeddedFile {
        name: "sshd-config.j2",
        content: include_str!("../../catalogue/addons/sshd-config.j2"),
    },
    EmbeddedFile {
        name: "oidc-provider.yaml",
        content: include_str!("../../catalogue/addons/oidc-provider.yaml"),
    },
];
