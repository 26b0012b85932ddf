"""What is in the generated inputs: pieces of text, joined by whoever writes the file.

Nothing depends on the machine, the locale or Python's version: all chance comes from Dice.
"""


class Dice:
    """SplitMix64, as in the workloads; what random.Random's methods return may change with Python's version."""

    MASK = (1 << 64) - 1

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & self.MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & self.MASK
        return z ^ (z >> 31)

    def below(self, n):
        """Uniform in [0, n)."""
        return (self.next() * n) >> 64

    def between(self, low, high):
        """Uniform in [low, high]."""
        return low + self.below(high - low + 1)

    def pick(self, sequence):
        return sequence[self.below(len(sequence))]


_SYLLABLES = ("ba be bo da de di do fa fe ga go ha he ka ki la le li lo ma me mi mo na ne no pa pe ra re ri ro sa se "
              "ta te ti to").split()


def _vocabulary(count):
    dice = Dice(42)
    return ["".join(dice.pick(_SYLLABLES) for _ in range(dice.between(1, 5))) for _ in range(count)]


WORDS = _vocabulary(2000)


def sentence(dice, words):
    return " ".join(dice.pick(WORDS) for _ in range(words)).capitalize() + "."


# ---- for xalan ----


def library(articles):
    """XML: articles with sections, paragraphs and citations, on shelves of 50."""
    dice = Dice(1)
    # Few different paragraphs, so that making a large file does not take longer than working on it.
    paragraphs = [f"{sentence(dice, 12)} <em>{sentence(dice, 3)}</em> {sentence(dice, 9)}" for _ in range(500)]
    yield '<?xml version="1.0"?>\n<library>\n'
    for number in range(articles):
        if number % 50 == 0:
            yield ("</shelf>\n" if number else "") + f'<shelf name="{dice.pick(WORDS)} {number // 50}">\n'
        yield (f'<article id="a{number}"><title>{sentence(dice, 5)}</title>'
               f"<author>{dice.pick(WORDS[:400])}</author><price>{dice.below(10000) / 100}</price>"
               f"<abstract>{sentence(dice, 25)}</abstract>\n")
        for _ in range(dice.between(1, 4)):
            yield f'<section title="{sentence(dice, 3)}">'
            for _ in range(dice.between(2, 5)):
                yield f"<p>{dice.pick(paragraphs)}</p>"
            yield "</section>\n"
        for _ in range(3):
            yield f'<cites id="a{dice.below(articles)}"/>'
        yield "</article>\n"
    yield "</shelf>\n</library>\n"


# ---- for gcc ----

_UNIT_HEAD = """// Templates, classes with virtual functions, lambdas, containers: what large translation units have.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

struct Shape {
  virtual ~Shape() = default;
  virtual double area(int scale) const = 0;
};
template <int N, class... Parts>
struct Compound : Parts... {
  double sum(int n) const { return (0.0 + ... + Parts::value(n)) * N; }
};
template <int N>
struct Part {
  static double value(int n) {
    if constexpr (N > 0) return Part<N - 1>::value(n) / (n + N);
    else return n;
  }
};
"""

_UNIT_CLASS = """
struct Key{i} {{
  int a;
  std::string b;
  bool operator<(const Key{i}& o) const {{ return a < o.a || (a == o.a && b < o.b); }}
}};
class Shape{i} : public Shape, private Compound<{i}, Part<{i}>> {{
 public:
  double area(int scale) const override {{
    std::map<Key{i}, std::vector<double>> table;
    for (int n = 0; n < scale; ++n) table[Key{i}{{n % {m}, std::to_string(n * {k})}}].push_back(this->sum(n + 1));
    double total = 0;
    for (const auto& [key, values] : table)
      total += std::accumulate(values.begin(), values.end(), double(key.a),
                               [&](double x, double y) {{ return x + y * {m} + scale; }});
    switch (scale % 8) {{
{cases}      default: break;
    }}
    return total;
  }}
  std::function<int(int)> twist(int n) const {{
    return [n, f = values_](int x) {{ return f.empty() ? x : f[n % f.size()] * x + {k}; }};
  }}
 private:
  std::vector<int> values_ = {{ {values} }};
}};
"""


def translation_unit(classes):
    """C++: that many classes, each with containers and lambdas over types of its own."""
    dice = Dice(3)
    yield _UNIT_HEAD
    for i in range(classes):
        cases = "".join(f"      case {c}: total = total * {dice.between(2, 99)} + double(values_.size()) / "
                        f"{dice.between(2, 9)}; break;\n" for c in range(7))
        yield _UNIT_CLASS.format(i=i, m=dice.between(2, 60), k=dice.between(2, 999), cases=cases,
                                 values=", ".join(str(dice.below(10000)) for _ in range(12)))
    yield "std::vector<std::unique_ptr<Shape>> all() {\n  std::vector<std::unique_ptr<Shape>> shapes;\n"
    for i in range(classes):
        yield f"  shapes.push_back(std::make_unique<Shape{i}>());\n"
    yield "  return shapes;\n}\n"


# ---- for git ----


def history(commits, files):
    """A stream for git fast-import: text files, each commit changing four lines in each of up to three of them."""
    dice = Dice(4)
    sentences = [sentence(dice, 8) for _ in range(5000)]
    lines = [[dice.pick(sentences) for _ in range(dice.between(20, 200))] for _ in range(files)]
    for commit in range(commits):
        message = dice.pick(sentences)
        yield f"commit refs/heads/main\ncommitter Author <author@example.org> {1600000000 + commit * 600} +0000\n"
        yield f"data {len(message)}\n{message}\n"
        for number in range(files) if commit == 0 else sorted({dice.below(files) for _ in range(3)}):
            for _ in range(4):
                lines[number][dice.below(len(lines[number]))] = dice.pick(sentences)
            body = "\n".join(lines[number]) + "\n"
            yield f"M 100644 inline folder{number % 20}/file{number}.txt\ndata {len(body)}\n{body}\n"


# ---- for z3 ----


def recursive_trees(depth):
    """SMT-LIB: the sum over a binary tree that recursive functions build and walk; its other value is refuted by
    unfolding 2^depth calls into terms."""
    yield f"""(set-logic ALL)
(set-info :status unsat)
(declare-datatypes ((Tree 0)) (((leaf) (node (left Tree) (key Int) (right Tree)))))
(define-fun-rec sum ((t Tree)) Int (ite ((_ is leaf) t) 0 (+ (key t) (sum (left t)) (sum (right t)))))
(define-fun-rec build ((d Int) (k Int)) Tree
  (ite (<= d 0) leaf (node (build (- d 1) (* 2 k)) k (build (- d 1) (+ 1 (* 2 k))))))
(declare-const x Int)
(assert (= (sum (build {depth} 1)) x))
(assert (not (= x {sum(range(1, 2 ** depth))})))
(check-sat)
"""


def hilbert(size):
    """SMT-LIB: linear equations with the Hilbert matrix, solved in exact fractions of ever more digits."""
    yield "(set-logic QF_LRA)\n(set-info :status sat)\n"
    for column in range(size):
        yield f"(declare-const x{column} Real)\n"
    for row in range(size):
        terms = " ".join(f"(* (/ 1 {row + column + 1}) x{column})" for column in range(size))
        yield f"(assert (= (+ {terms}) 1))\n"
    yield "(check-sat)\n"
