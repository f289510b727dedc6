package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"sort"
	"strings"
)

type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(v string) error { *l = append(*l, v); return nil }

// layer is the one layer of an image; the same input makes the same bytes.
type layer struct {
	entries map[string]tar.Header
	content map[string][]byte
}

func (l *layer) add(name string, mode int64, content []byte) {
	l.directories(path.Dir(name))
	l.entries[name] = tar.Header{Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}
	l.content[name] = content
}

func (l *layer) directories(name string) {
	for ; name != "/" && name != "."; name = path.Dir(name) {
		if _, ok := l.entries[name]; !ok {
			l.entries[name] = tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}
		}
	}
}

func (l *layer) link(name, target string) {
	l.directories(path.Dir(name))
	l.entries[name] = tar.Header{Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}
}

func (l *layer) bytes() ([]byte, error) {
	names := make([]string, 0, len(l.entries))
	for name := range l.entries {
		names = append(names, name)
	}
	// A directory before what it contains.
	sort.Strings(names)
	var out bytes.Buffer
	writer := tar.NewWriter(&out)
	for _, name := range names {
		header := l.entries[name]
		header.Name = strings.TrimPrefix(name, "/")
		if header.Typeflag == tar.TypeDir {
			header.Name += "/"
		}
		if err := writer.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := writer.Write(l.content[name]); err != nil {
			return nil, err
		}
	}
	err := writer.Close()
	return out.Bytes(), err
}

// file copies a file or a folder of this machine, `FROM` or `FROM:TO`.
func (l *layer) file(argument string) ([]string, error) {
	from, to, named := strings.Cut(argument, ":")
	if !named {
		to = "/" + filepath.Base(from)
	}
	to = path.Clean("/" + to)
	var files []string
	err := filepath.WalkDir(from, func(source string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, source)
		if err != nil {
			return err
		}
		// Links are followed: what they lead to may not be in the image.
		info, err := os.Stat(source)
		if err != nil || info.IsDir() {
			return err
		}
		content, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		files = append(files, source)
		l.add(path.Join(to, filepath.ToSlash(relative)), int64(info.Mode().Perm()), content)
		return nil
	})
	return files, err
}

var library = regexp.MustCompile(`(?:=> )?(/\S+) \(0x`)

// libraries copies what the dynamic linker of this machine would load.
func (l *layer) libraries(program string) error {
	output, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		if bytes.Contains(output, []byte("not a dynamic executable")) || bytes.Contains(output, []byte("statically linked")) {
			return nil
		}
		return fmt.Errorf("ldd %s: %w: %s", program, err, bytes.TrimSpace(output))
	}
	if bytes.Contains(output, []byte("not found")) {
		return fmt.Errorf("ldd %s: %s", program, bytes.TrimSpace(output))
	}
	for _, found := range library.FindAllSubmatch(output, -1) {
		name := string(found[1])
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		l.add(name, 0o755, content)
	}
	return nil
}

// image writes a docker-archive with one layer.
func image(args []string) error {
	flags := flag.NewFlagSet("image", flag.ExitOnError)
	var names, entrypoint, command, env, folders, links list
	flags.Var(&names, "name", "name of the image with its tag; may be repeated")
	flags.Var(&entrypoint, "entrypoint", "one word of the entry point; may be repeated")
	flags.Var(&command, "cmd", "one word of the default arguments; may be repeated")
	flags.Var(&env, "env", "NAME=VALUE; may be repeated")
	flags.Var(&folders, "folder", "an empty folder that everybody may write to; may be repeated")
	flags.Var(&links, "link", "NAME=TARGET, a symbolic link; may be repeated")
	user := flags.String("user", "", "numeric UID or UID:GID")
	workdir := flags.String("workdir", "/", "working directory")
	libs := flags.Bool("libs", false, "with the shared libraries of every file that is executable")
	output := flags.String("output", "", "the archive to write")
	flags.Parse(args)
	if len(names) == 0 || *output == "" || flags.NArg() == 0 {
		return errors.New("--name, --output and at least one FILE[:PATH] are needed")
	}

	l := layer{entries: map[string]tar.Header{}, content: map[string][]byte{}}
	l.add("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nredis:x:999:999:redis:/data:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"))
	l.add("/etc/group", 0o644, []byte("root:x:0:\nredis:x:999:\nnogroup:x:65534:\n"))
	for _, folder := range append(folders, "/tmp") {
		l.directories(path.Dir(path.Clean(folder)))
		l.entries[path.Clean(folder)] = tar.Header{Typeflag: tar.TypeDir, Mode: 0o1777}
	}
	for _, argument := range flags.Args() {
		files, err := l.file(argument)
		if err != nil {
			return err
		}
		for _, file := range files {
			if info, err := os.Stat(file); err != nil || !*libs || info.Mode()&0o111 == 0 {
				continue
			}
			if magic, err := os.ReadFile(file); err != nil || !bytes.HasPrefix(magic, []byte("\x7fELF")) {
				continue
			}
			if err := l.libraries(file); err != nil {
				return err
			}
		}
	}
	for _, link := range links {
		name, target, _ := strings.Cut(link, "=")
		l.link(path.Clean("/"+name), target)
	}

	content, err := l.bytes()
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"created":      "1970-01-01T00:00:00Z",
		"config": map[string]any{
			"Entrypoint": entrypoint,
			"Cmd":        command,
			"Env":        append(list{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, env...),
			"User":       *user,
			"WorkingDir": *workdir,
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(content)}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config":   digest(config) + ".json",
		"RepoTags": names,
		"Layers":   []string{digest(content) + "/layer.tar"},
	}})
	if err != nil {
		return err
	}

	archive := layer{entries: map[string]tar.Header{}, content: map[string][]byte{}}
	archive.add("/"+digest(config)+".json", 0o644, config)
	archive.add("/"+digest(content)+"/layer.tar", 0o644, content)
	archive.add("/manifest.json", 0o644, manifest)
	content, err = archive.bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(*output, content, 0o644)
}

func digest(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }
