//! What `--help` says beside flags, and what is said of a file without its flag.

use clap::Arg;

use crate::output::quoted;

pub(super) const DEV: &str = "\
Examples:
  drover dev
  drover dev -f hello.yaml --simulate aws,gcp
  drover dev --clean";

pub(super) const APPLY: &str = "\
Examples:
  drover init | drover apply -f - --wait
  drover apply -f hello.yaml --dry-run
  drover apply -f manifests/ -y";

pub(super) const GET: &str = "\
Examples:
  drover get clusters -o wide
  drover get nodes hello -w
  drover get nodes hello -o json | jq -r '.nodes[] | .name, .state'

With -o json and -o yaml, states are in the words of the API: NODE_STATE_READY for Ready.";

pub(super) const SCALE: &str = "\
Examples:
  drover scale hello/web 5 --wait
  drover scale hello/web +2 --dry-run
  drover scale hello/web --remove web-0";

pub(super) const ROLLOUT: &str = "\
Examples:
  drover rollout status hello --wait
  drover rollout history hello
  drover rollout undo hello --dry-run";

pub(super) const FAILOVER: &str = "\
Examples:
  drover failover orders
  drover failover orders/db --accept-loss

Standby nodes take over by themselves. Only where the last active node of a group may have acknowledged writes that no \
standby has (condition PromotionFailed, reason SoleWriter), somebody has to decide whether they are done without, for good. \
Without --accept-loss it is only said what would be lost.";

pub(super) const LOGS: &str = "\
Examples:
  drover logs hello/web-0 --tail 20
  drover logs hello/web -f
  drover logs hello --since 10m";

pub(super) const CONNECT: &str = "\
Examples:
  drover connect orders
  drover connect orders --read -- pg_dump -Fc
  drover connect cache -- redis-cli get greeting
  drover connect coordination -- etcdctl member list -w table
  eval \"$(drover connect orders --env)\"

The program takes the place of this one. It gets STORE_HOST and STORE_PORT (of the first node), STORE_ADDRESSES (HOST:PORT of \
each, with commas between), and what clients of the store read: PGHOST, PGPORT, PGTARGETSESSIONATTRS, PGUSER and PGDATABASE \
(postgres unless set); REDIS_HOST, REDIS_PORT, REDIS_URL; ETCDCTL_ENDPOINTS, ETCDCTL_API. redis-cli, which reads none of them, \
gets -h and -p before its arguments.

A password is neither asked for nor printed: set PGPASSWORD or REDISCLI_AUTH yourself.

Nothing is sent to the nodes. Addresses of pods lead nowhere outside of their network; there kubectl port-forward is the way.";

pub(super) const WAIT: &str = "\
Examples:
  drover wait hello
  drover wait hello --for condition=UpToDate --timeout 5m
  drover wait hello --for delete";

/// A file that is given without -f.
pub(super) fn stray(command: &'static str) -> Arg {
    let refuse = move |file: &str| -> Result<String, String> {
        let file = quoted(file);
        Err(format!("files follow -f: drover {command} -f {file}"))
    };
    Arg::new("stray")
        .hide(true)
        .value_name("FILE")
        .value_parser(refuse)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use crate::cli::Cli;

    #[test]
    fn every_example_is_a_command_that_can_be_given() {
        let root = Cli::command();
        for name in [
            "apply", "connect", "dev", "failover", "get", "logs", "rollout", "scale", "wait",
        ] {
            let command = root.find_subcommand(name).unwrap();
            let help = command.get_after_long_help().unwrap().to_string();
            let examples = help.lines().filter_map(|line| line.strip_prefix("  "));
            let examples: Vec<&str> = examples.collect();
            assert!(examples.len() >= 2, "{help}");
            for example in examples {
                assert!(example.contains(&format!("drover {name}")), "{example}");
                let ours = example.split(" | ").filter(|it| it.starts_with("drover"));
                for command in ours {
                    let parsed = Cli::try_parse_from(command.split(' '));
                    assert!(parsed.is_ok(), "{command}: {:?}", parsed.err());
                }
            }
        }
    }

    #[test]
    fn a_file_without_its_flag_is_told_where_it_belongs() {
        for (line, tip) in [
            ("apply a.yaml", "drover apply -f a.yaml"),
            ("apply -f a.yaml b.yaml", "drover apply -f b.yaml"),
            ("validate it's.yaml", r"drover validate -f 'it'\''s.yaml'"),
            ("convert a.yaml", "drover convert -f a.yaml"),
            ("dev a.yaml", "drover dev -f a.yaml"),
        ] {
            let words = ["drover"].into_iter().chain(line.split(' '));
            let error = Cli::try_parse_from(words).unwrap_err().to_string();
            assert!(error.contains(tip), "{error}");
        }
        let help = Cli::command()
            .find_subcommand_mut("apply")
            .unwrap()
            .render_long_help()
            .to_string();
        assert!(!help.contains("[FILE]"), "{help}");
    }
}
