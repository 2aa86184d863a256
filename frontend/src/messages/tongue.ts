/** What comes in English, in another language: texts are known as a whole, by a template with gaps, or piece by piece. */

interface Template { shape: RegExp; piece: string; names: string[]; other: string }
/** A text in the language, and how many letters of it are not. */
interface Said { text: string; left: number }

const GAP = /\{(\w+)(!?)\}/g
const NUMBER = String.raw`[-−+]?(?:[\d.,]*\d[\d.,]*(?:e[-+]?\d+)? ?%?|∞|none)`
const JOINT = /[,;:.] |[.]$| [·→×] |\n/g
const JOINED: Record<string, string> = { ', ': '，', '; ': '；', ': ': '：', '. ': '。', '.': '。' }
/** What a letter that is meant to stay costs, beside 1 for one that nothing is known of. */
const VERBATIM = 0.01

/** Letters in words; the names of components (L3.mlp) are names in every language. */
const letters = (text: string): number => (text.replace(/\bL\d+\.\w+/g, '').match(/[A-Za-z]{2,}/g) ?? []).join('').length
const escaped = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')

function templates(text: string, other: string): Template[] {
  const names = [...text.matchAll(GAP)].map((gap) => gap[1]!)
  const pieces = text.split(/\{\w+\}/)
  const piece = pieces.reduce((a, b) => (b.length > a.length ? b : a))
  return ['?', ''].map((greedy) => {
    const shape = pieces.map((one, at) => escaped(one) + (at < names.length ? (names[at]!.startsWith('n') ? `(${NUMBER})` : `(.*${greedy})`) : '')).join('')
    return { shape: new RegExp(`^${shape}$`, 's'), piece, names, other }
  })
}

export class Tongue {
  private known: Map<string, Said>
  private templates: Template[]

  constructor(said: Record<string, string>) {
    const bare = (text: string) => text.replace(GAP, '')
    const entries = Object.entries(said)
    this.known = new Map(entries.filter(([text]) => bare(text) === text).map(([text, other]) => [text, { text: other, left: 0 }]))
    this.templates = entries.filter(([text]) => bare(text) !== text).sort(([a], [b]) => bare(b).length - bare(a).length).flatMap(([text, other]) => templates(text, other))
  }

  /** A text in this language, as far as it is known. */
  tell(text: string): string {
    return this.templates.length ? this.best(text).text.replace(/(?<=[一-鿿]) (?=[一-鿿])/g, '') : text
  }

  /** The rendering that leaves least unknown. */
  private best(text: string): Said {
    let found = this.known.get(text)
    if (!found) {
      found = this.search(text)
      this.known.set(text, found)
    }
    return found
  }

  private search(text: string): Said {
    let best: Said = { text, left: letters(text) }
    if (!best.left) return best
    const bare = text.replace(/^ +| +$/g, '')
    if (bare !== text) {
      const said = this.best(bare)
      return { text: text.replace(bare, () => said.text), left: said.left }
    }
    for (const ways of [this.byTemplate(text), this.inPieces(text)])
      for (const one of ways) {
        if (one.left < best.left) best = one
        if (best.left < 1) return best
      }
    return best
  }

  private *byTemplate(text: string): Generator<Said> {
    for (const { shape, piece, names, other } of this.templates) {
      const match = text.includes(piece) ? shape.exec(text) : null
      if (!match) continue
      let left = 0
      const filled = other.replace(GAP, (_, name: string, stays: string) => {
        const gap = match[names.indexOf(name) + 1] ?? ''
        const said = stays ? { text: gap, left: VERBATIM * letters(gap) } : this.best(gap)
        left += said.left
        return said.text
      })
      yield { text: filled, left }
    }
  }

  private *inPieces(text: string): Generator<Said> {
    for (const joint of [...text.matchAll(JOINT)].reverse()) {
      const end = joint.index + joint[0].length
      const rest = this.best(text.slice(end))
      const before = this.best(text.slice(0, joint.index))
      yield { text: before.text + (JOINED[joint[0]] ?? joint[0]) + rest.text, left: before.left + rest.left }
      if (end === text.length) continue
      const closed = this.best(text.slice(0, joint.index + 1)) // the stop is part of the text before
      yield { text: closed.text + rest.text, left: closed.left + rest.left }
    }
  }
}
