"""What fits at the end of a command line: the answers to the scripts in tools/completion."""

import os
import shlex

ASKED_BY = "_SPANALLOC_COMPLETE"  # set by a shell that wants to know what fits; click's name, for the suite's commands


def asked():
    """(words, the last one's beginning) of the line that the shell asks about."""
    words = _words(os.environ.get("COMP_WORDS", ""))
    if os.environ[ASKED_BY] == "complete_fish":
        last = os.environ.get("COMP_CWORD", "")
        return (words[1:-1] if last and words[-1] == last else words[1:]), last
    at = int(os.environ.get("COMP_CWORD", "0"))
    return words[1:at], words[at] if at < len(words) else ""


def _words(text):
    """As a shell parts them; what is quoted may not have ended yet."""
    reader = shlex.shlex(text, posix=True)
    reader.whitespace_split, reader.commenters = True, ""
    found = []
    try:
        found.extend(iter(reader.get_token, None))
    except ValueError:
        found.append(reader.token)
    return found


def answer(found):
    """Prints [(word, its help)] as the shell takes it."""
    shell = os.environ[ASKED_BY]
    for word, about in found:
        if shell == "complete_zsh":
            print(f"plain\n{word}\n{about or '_'}")
        else:
            print(f"plain,{word}" + (f"\t{about}" if about and shell == "complete_fish" else ""))


def offered(commands, words, begun):
    """[(word, its help)]. `commands`: {name: cli.Command}."""
    if not words:
        found = [(name, command.short) for name, command in commands.items()]
        found += [("--version", ""), ("--help", "")] if begun.startswith("-") else []
        return [each for each in found if each[0].startswith(begun)]
    command = commands.get(words[0])
    if command is None:
        return []
    options = {flag: option for option in command.options for flag in option.flags}
    wants = None  # the option whose value comes next
    is_behind, given = False, False
    for word in words[1:]:
        if wants:
            wants = None
        elif is_behind or not word.startswith("-"):
            given, is_behind = True, is_behind or not (command.mixes or command.is_number(word))
        elif word == "--":
            is_behind = True
        else:
            option = options.get(word)
            wants = option if option and option.takes_value else None
    if wants:
        found = [(word, "") for word in wants.complete()] if wants.complete else []
    elif begun.startswith("-") and not is_behind:
        found = [(option.flags[0], option.settings["help"]) for option in command.options]
    else:
        found = [] if given or not command.takes_program else [(name, "") for name in programs(begun)]
    return [each for each in found if each[0].startswith(begun)]


def programs(begun):
    """Programs on the PATH for a command's first word; the shell itself knows files."""
    if not begun or "/" in begun:
        return []
    found = set()
    for folder in os.get_exec_path():
        try:
            found.update(e.name for e in os.scandir(folder) if e.name.startswith(begun) and os.access(e.path, os.X_OK))
        except OSError:
            continue
    return sorted(found)
