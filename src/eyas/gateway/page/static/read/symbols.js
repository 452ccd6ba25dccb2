// The commands of TeX that stand for a character, and mathematical alphabets.

const pairs = (text) =>
  Object.fromEntries(
    text
      .trim()
      .split(/\s+/)
      .map((pair) => [pair.slice(0, pair.lastIndexOf(":")), pair.slice(pair.lastIndexOf(":") + 1)]),
  );

export const SYMBOLS = {
  ...pairs(`alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ
    lambda:λ mu:μ nu:ν xi:ξ omicron:ο pi:π varpi:ϖ rho:ρ varrho:ϱ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ
    chi:χ psi:ψ omega:ω Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω
    ell:ℓ hbar:ℏ imath:ı jmath:ȷ Re:ℜ Im:ℑ aleph:ℵ wp:℘ partial:∂ nabla:∇ infty:∞ emptyset:∅ varnothing:∅
    pm:± mp:∓ times:× div:÷ cdot:⋅ ast:∗ star:⋆ circ:∘ bullet:∙ oplus:⊕ ominus:⊖ otimes:⊗ odot:⊙ oslash:⊘
    leq:≤ le:≤ geq:≥ ge:≥ neq:≠ ne:≠ ll:≪ gg:≫ approx:≈ equiv:≡ sim:∼ simeq:≃ cong:≅ propto:∝ doteq:≐ asymp:≍
    leqslant:⩽ geqslant:⩾ lesssim:≲ gtrsim:≳ prec:≺ succ:≻ preceq:⪯ succeq:⪰
    subset:⊂ supset:⊃ subseteq:⊆ supseteq:⊇ subsetneq:⊊ in:∈ notin:∉ ni:∋ cup:∪ cap:∩ setminus:∖ sqcup:⊔ sqcap:⊓ uplus:⊎
    forall:∀ exists:∃ nexists:∄ neg:¬ lnot:¬ land:∧ wedge:∧ lor:∨ vee:∨ top:⊤ bot:⊥ vdash:⊢ dashv:⊣ models:⊨ Vdash:⊩
    to:→ rightarrow:→ gets:← leftarrow:← leftrightarrow:↔ Rightarrow:⇒ Leftarrow:⇐ Leftrightarrow:⇔ implies:⟹ iff:⟺
    longrightarrow:⟶ longleftarrow:⟵ Longrightarrow:⟹ longmapsto:⟼ mapsto:↦ uparrow:↑ downarrow:↓ Uparrow:⇑ Downarrow:⇓
    nearrow:↗ searrow:↘ hookrightarrow:↪ rightharpoonup:⇀ rightleftharpoons:⇌ leadsto:⇝
    ldots:… cdots:⋯ vdots:⋮ ddots:⋱ dots:… dotsc:… dotsb:⋯ mid:∣ parallel:∥ perp:⊥ nmid:∤ angle:∠ triangle:△
    square:□ Box:□ blacksquare:■ diamond:⋄ prime:′ dagger:† ddagger:‡ degree:° therefore:∴ because:∵ bigcirc:◯ checkmark:✓
    langle:⟨ rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ vert:| lvert:| rvert:| Vert:‖ lVert:‖ rVert:‖ lbrace:{ rbrace:}
    lbrack:[ rbrack:] backslash:∖ S:§ P:¶ euro:€ pounds:£ triangleq:≜ coloneqq:≔ ltimes:⋉ rtimes:⋊ bowtie:⋈`),
  ...{ colon: ":", "{": "{", "}": "}", "|": "‖", $: "$", "%": "%", "&": "&", "#": "#", _: "_" },
};

/** Operators that grow in display style. */
export const BIG = pairs(`sum:∑ prod:∏ coprod:∐ int:∫ iint:∬ iiint:∭ oint:∮ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂
  bigvee:⋁ bigwedge:⋀ bigsqcup:⨆`);

export const FUNCTIONS = {
  ...Object.fromEntries(
    `sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan exp log ln lg det dim ker deg gcd hom arg max min
    sup inf lim Pr mod`
      .split(/\s+/)
      .map((name) => [name, name]),
  ),
  ...{ limsup: "lim sup", liminf: "lim inf", argmax: "arg max", argmin: "arg min", bmod: "mod" },
};

export const SPACES = {
  ...{ ",": "0.17em", ":": "0.22em", ">": "0.22em", ";": "0.28em", " ": "0.33em", "!": "-0.17em" },
  ...{ quad: "1em", qquad: "2em", enspace: "0.5em", thinspace: "0.17em", "\n": "0.33em" },
};

export const ACCENTS = pairs("hat:^ widehat:^ bar:‾ vec:→ dot:˙ ddot:¨ tilde:~ widetilde:~ check:ˇ breve:˘ acute:´ grave:`");

export const ALPHABETS = {
  ...{ mathbb: "double", mathcal: "script", mathscr: "script", mathfrak: "fraktur", mathbf: "bold", mathsf: null },
  ...{ boldsymbol: "bold", bm: "bold", mathtt: "mono", mathit: "italic", mathnormal: "italic" },
};

// Where the capital A, the small a and the digit 0 of an alphabet stand in Unicode.
const PLANES = {
  double: [0x1d538, 0x1d552, 0x1d7d8],
  script: [0x1d49c, 0x1d4b6, null],
  fraktur: [0x1d504, 0x1d51e, null],
  bold: [0x1d400, 0x1d41a, 0x1d7ce],
  mono: [0x1d670, 0x1d68a, 0x1d7f6],
  italic: [0x1d434, 0x1d44e, null],
};
// Letters that Unicode had before, elsewhere.
const OLD = {
  double: { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" },
  script: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" },
  fraktur: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" },
  italic: { h: "ℎ" },
};

/** Returns a text in an alphabet. */
export function alphabet(text, style) {
  const [upper, lower, digit] = PLANES[style];
  const shifted = (one, from, to) => (to === null ? one : String.fromCodePoint(to + one.charCodeAt(0) - from));
  return [...text]
    .map((one) => {
      if (OLD[style] && Object.hasOwn(OLD[style], one)) return OLD[style][one];
      if (one >= "A" && one <= "Z") return shifted(one, 65, upper);
      if (one >= "a" && one <= "z") return shifted(one, 97, lower);
      if (one >= "0" && one <= "9") return shifted(one, 48, digit);
      return one;
    })
    .join("");
}
