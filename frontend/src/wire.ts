/** The studio's answers as values, whether a server gives them or the files of an export. */

export interface Model { id: string; name: string; title: string; layers: number; heads: number; width: number; family: string; parameters: number; dtype: string; device: string; certificate: string; ready: boolean }
export interface State { version: string; models: Model[]; model: string; example: string | null; corpus?: string | null; limits: { tokens: number; text_bytes: number; jobs: number } }
export interface FieldSaid { dims: string[]; definition: string; unit?: string; null?: string; null_sd?: string }
export interface AnalysisSaid { name: string; question: string; needs: string; dear: boolean; room: string; fields: Record<string, FieldSaid>; settings: Record<string, unknown> }
export interface Catalogue { analyses: AnalysisSaid[]; questions: { name: string; question: string; needs: string[]; deeper: string }[]; operations: { name: string; title: string; takes?: string | null }[] }
export type Part = 'M' | 'F' | 'both'
export interface Edit { layer: number; head: number; part: Part; operation: string; value?: number }
export interface Token { text: string; shown: string; massive: boolean }
export interface Said { shown: string; probability: number }
/** A window of a text: its own tokens `first` to `last` of `tokens`, counted from 1. */
export interface Window { at: number; of: number; first: number; last: number; tokens: number }
export interface Head { id: string; model: string; text: string; window?: Window | null; tokens: Token[]; steps: string[]; layers: number; heads: number; width: number; edits: Edit[]; next: Said & { token: string; id: number }; top: Said[]; provenance: Record<string, unknown> }
export interface Finding { text: string; analysis: string; q: number | null }
export interface Findings { findings: Finding[]; held: string; note: string }
export interface Verdict { name: string; question: string; answer: string; line: string; deeper: string; value?: number | null; null?: number | null; spread?: number | null; q?: number | null }
export interface Points { points: Float32Array; steps: number; tokens: number; star: Float32Array | null; share: number; shares: number[]; space: string; axes: string }
export interface Spectrum { M: number[]; F: number[]; symmetry: number; positive_share: number; copying: number }
export interface Attribution { components: { name: string; contribution: number }[]; score: number }
export interface Moves { moves: Float32Array; step: string; share: number; edited: boolean }
export interface Pair { first: number; second: number; before: number; after: number }
export type Image = 'query' | 'key' | 'content'
export interface Images { flat: Record<'E' | Image, Field>; agreement: Float32Array; shares: Record<'E' | Image, number[]>; pairs: Record<Image, Record<'torn' | 'glued', Pair[]>>; edited: boolean }
export interface TokenSaid { lens: { step: string; shown: string; probability: number }[]; written: { component: string; logits: number }[] }

/** A corpus run: what it is of, how far it is (`shards` of `of`), and which fields of heads it holds (`analysis.field`). */
export interface CorpusSaid { name: string; model: string; weights: string; layers: number; heads: number; texts: number; tokens: number; rejects: number; shards: number; of: number; length: number; packed: boolean; fields: string[] }
/** A field of all heads over the corpus: mean, low, high, sd, texts and, where there is one, null. */
export interface CorpusField { coords: Answer['coords']; arrays: Record<string, Field> }
/** `around`: what stands before the token that the example is about, the token, and what stands after it. */
export interface CorpusExample { value: number; text: string; file: string; line: number; tokens: number; token: number | null; around: [string, string, string] | null }
export interface Distribution { edges: number[]; shares: number[]; null: number[] | null; outside: number }
export interface CorpusHead { mean: number | null; low: number | null; high: number | null; sd: number | null; texts: number; documents: number; items: number; quantiles: Record<string, number | null>; distribution: Distribution; most: CorpusExample[]; least: CorpusExample[] }

export interface ArraySaid { name: string; dtype: string; shape: number[]; dims: string[]; offset: number; scale?: number; zero?: number; missing?: boolean }
export interface Field { values: Float32Array; shape: number[]; dims: string[] }
/** What a field is more after than before. */
export const lessField = (after: Field, before: Field): Field => ({ ...after, values: after.values.map((value, at) => value - before.values[at]!) })
export interface Envelope { header: Record<string, any>; arrays: Record<string, Field> }
export interface Answer { name: string; question: string; attrs: Record<string, unknown>; coords: Record<string, { dims: string[]; values: any[] }>; fields: Record<string, FieldSaid>; pictures: Picture[]; texts: Record<string, any>; left_out: string[]; arrays: Record<string, Field> }

export interface Axis { label: string; names: string[]; marked: number[]; log: boolean; bare: boolean; low: number | null; high: number | null }
export type Numbers = (number | null)[]
export interface Line { mark: 'line'; name: string; x: Numbers; y: Numbers; colour: string; style: string; tip: string; tips: string[] }
export interface Shape { mark: 'shape'; name: string; x: Numbers; y: Numbers; colour: string; opacity: number; tip: string }
export interface Cells { mark: 'cells'; values: Numbers[]; texts: string[][]; tips: string[][]; marked: [number, number][]; low: number; high: number; centre: number; name?: string }
export interface Word { mark: 'word'; x: number; y: number; text: string; side: string; strong: boolean }
export type Mark = Line | Shape | Cells | Word
export interface Panel { title: string; about: string; marks: Mark[]; x: Axis; y: Axis; columns: number; height: number; equal: boolean }
export interface Picture { title: string; caption: string; panels: Panel[] }

export class WireError extends Error {
  constructor(message: string, readonly status = 0) { super(message) }
}

/** One float16 as a number: sign, five bits of exponent, ten of mantissa. */
export function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1
  const exponent = (bits >> 10) & 31
  const mantissa = bits & 1023
  if (exponent === 0) return sign * mantissa * 2 ** -24
  if (exponent === 31) return mantissa ? NaN : sign * Infinity
  return sign * (1 + mantissa / 1024) * 2 ** (exponent - 15)
}

const HALVES = new Float32Array(65536).fill(NaN)
let halvesKnown = false

function halves(data: Uint16Array): Float32Array {
  if (!halvesKnown) {
    for (let bits = 0; bits < 65536; bits++) HALVES[bits] = half(bits)
    halvesKnown = true
  }
  return Float32Array.from(data, (bits) => HALVES[bits]!)
}

/** The numbers of one array, whatever they were sent as. */
export function numbers(buffer: ArrayBuffer, start: number, said: ArraySaid): Float32Array {
  const count = said.shape.reduce((a, b) => a * b, 1)
  const at = start + said.offset
  switch (said.dtype) {
    case 'float32': return new Float32Array(buffer, at, count)
    case 'float16': return halves(new Uint16Array(buffer, at, count))
    case 'int32': return Float32Array.from(new Int32Array(buffer, at, count))
    case 'uint8': {
      const { scale = 1, zero = 0, missing = false } = said
      return Float32Array.from(new Uint8Array(buffer, at, count), (v) => (missing && v === 255 ? NaN : zero + v * scale))
    }
    default: throw new WireError(`an array of ${said.dtype} came, float32, float16, int32 or uint8 was expected`)
  }
}

/** The header of a binary answer, and where its arrays start. */
export function opened(buffer: ArrayBuffer): { header: Record<string, any> & { arrays: ArraySaid[] }; start: number } {
  const view = new DataView(buffer)
  if (buffer.byteLength < 8 || view.getUint32(0) !== 0x5248454f) throw new WireError('this answer is no envelope: it does not start with RHEO')
  const length = view.getUint32(4, true)
  return { header: JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length))), start: 8 + length }
}

/** Header and arrays of a binary answer. */
export function open(buffer: ArrayBuffer): Envelope {
  const { header, start } = opened(buffer)
  const arrays: Record<string, Field> = {}
  for (const said of header.arrays) arrays[said.name] = { values: numbers(buffer, start, said), shape: said.shape, dims: said.dims ?? [] }
  return { header, arrays }
}

/** Marks are tagged in the singular or the plural; the page knows the singular. */
export function singular(picture: Picture): Picture {
  const tags: Record<string, string> = { lines: 'line', shapes: 'shape', words: 'word' }
  const panels = picture.panels.map((panel) => ({
    ...panel,
    marks: panel.marks.map((mark) => ({ ...mark, mark: tags[mark.mark] ?? mark.mark }) as Mark),
  }))
  return { ...picture, panels }
}

export interface Told { head(h: Head): void; verdict(v: Verdict): void; findings(f: Findings): void; progress(p: { name: string; done: number; total: number }): void; known(k: { name: string }): void; failed(f: { name: string; reason: string }): void; done(): void; error(e: { error: string }): void; cancelled(): void }

declare global { var RHEOSCOPE_FILES: Record<string, string> | undefined }

export type Ending = 'json' | 'bin'

/** Where answers come from: `read` by path and query, `ask` with a body where something computes. */
export interface Source {
  readonly live: boolean
  read(path: string, query: Record<string, string>, ending: Ending): Promise<ArrayBuffer>
  ask(path: string, body: unknown, method?: string): Promise<any>
}

async function refused(answer: Response, path: string): Promise<never> {
  const said = await answer.json().catch(() => ({}))
  throw new WireError(said.error ?? `${path} answered ${answer.status}`, answer.status)
}

export class Server implements Source {
  readonly live = true
  async read(path: string, query: Record<string, string>): Promise<ArrayBuffer> {
    const search = new URLSearchParams(query).toString()
    const answer = await fetch(`./${path}${search ? `?${search}` : ''}`)
    return answer.ok ? answer.arrayBuffer() : refused(answer, path)
  }
  async ask(path: string, body: unknown, method = 'POST'): Promise<any> {
    const answer = await fetch(`./${path}`, {
      method,
      ...(body === undefined ? {} : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
    })
    return answer.ok ? answer.json() : refused(answer, path)
  }
}

/** Which file of an export holds an answer; the usual axes and the usual kind are not named. */
export function fileOf(path: string, query: Record<string, string>, ending: Ending): string {
  const usual = ['all', 'sphere', 'weights']
  const told = Object.values(query).filter((value) => !usual.includes(value))
  return [path, ...told, ending].join('.')
}

/** Files of an export may be gzip as a whole. */
export async function inflated(buffer: ArrayBuffer): Promise<ArrayBuffer> {
  const start = new Uint8Array(buffer, 0, Math.min(2, buffer.byteLength))
  if (start[0] !== 0x1f || start[1] !== 0x8b) return buffer
  return new Response(new Blob([buffer]).stream().pipeThrough(new DecompressionStream('gzip'))).arrayBuffer()
}

/** Which script of an export holds an answer: what single heads and tokens are asked for comes when it is asked. */
export function scriptOf(file: string): string {
  const ofHead = /\/(?:weights|spectrum|moves|images)\/(\d+)\/\d+\./.exec(file)
  if (ofHead) return `data/layer-${ofHead[1]}.js`
  return file.includes('/token/') ? 'data/tokens.js' : 'data.js'
}

/** From disk nothing can be fetched, but a script can be read: so from a web server too. */
function loaded(name: string): Promise<boolean> {
  return new Promise((go) => {
    const script = document.createElement('script')
    script.src = `./${name}`
    script.onload = () => go(true)
    script.onerror = () => go(false)
    document.head.append(script)
  })
}

export class Files implements Source {
  readonly live = false
  private scripts = new Map<string, Promise<boolean>>()
  constructor(readonly missing: () => string, readonly load: (script: string) => Promise<boolean> = loaded) {}
  async read(path: string, query: Record<string, string>, ending: Ending): Promise<ArrayBuffer> {
    const file = fileOf(path, query, ending)
    const script = scriptOf(file)
    if (!this.scripts.has(script)) this.scripts.set(script, this.load(script))
    await this.scripts.get(script)
    const text = globalThis.RHEOSCOPE_FILES?.[file]
    if (text === undefined) throw new WireError(this.missing(), 404)
    return inflated(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer)
  }
  ask(): Promise<never> { return Promise.reject(new WireError(this.missing(), 405)) }
}

/** The trace an export is about, or nothing where a server answers. */
export function exported(page: Document = document): { trace: string } | null {
  const said = page.getElementById('rheoscope-export')?.textContent
  return said ? JSON.parse(said) : null
}

const EVENTS = ['head', 'verdict', 'findings', 'progress', 'known', 'failed', 'done', 'error', 'cancelled'] as const

/** At most so many at a time, in order: a browser has six connections to a server, and long answers must leave some free. */
export class Queue {
  private waiting: (() => void)[] = []
  constructor(private free: number) {}
  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.free > 0) this.free--
    else await new Promise<void>((go) => this.waiting.push(go))
    try {
      return await work()
    } finally {
      const next = this.waiting.shift()
      if (next) next()
      else this.free++
    }
  }
}

/** Every call of the wire, by name. */
export class Client {
  private answers = new Map<string, Promise<Answer>>()
  private long = new Queue(2)
  constructor(readonly source: Source) {}
  get live(): boolean { return this.source.live }

  private async json<T>(path: string, query: Record<string, string> = {}): Promise<T> {
    return JSON.parse(new TextDecoder().decode(await this.source.read(path, query, 'json')))
  }
  private async binary(path: string, query: Record<string, string> = {}): Promise<Envelope> {
    return open(await this.source.read(path, query, 'bin'))
  }

  state = () => this.json<State>('api/state')
  models = () => this.json<{ models: Model[]; recent: string[]; sources: string[] }>('api/models')
  catalogue = () => this.json<Catalogue>('api/catalogue')
  head = (id: string) => this.json<Head>(`api/traces/${id}`)
  verdicts = (id: string) => this.json<{ verdicts: Verdict[] } & Findings>(`api/traces/${id}/verdicts`)
  spectrum = (id: string, layer: number, head: number) => this.json<Spectrum>(`api/traces/${id}/spectrum/${layer}/${head}`)
  token = (id: string, at: number) => this.json<TokenSaid>(`api/traces/${id}/token/${at}`)
  corpus = () => this.json<CorpusSaid>('api/corpus')
  corpusHead = (analysis: string, field: string, layer: number, head: number, piece: number) => this.json<CorpusHead>(`api/corpus/${analysis}/${field}/${layer}/${head}`, { piece: String(piece) })
  async corpusField(analysis: string, field: string): Promise<CorpusField> {
    const { header, arrays } = await this.binary(`api/corpus/${analysis}/${field}`)
    return { coords: header.coords, arrays }
  }
  openModel = (source: string): Promise<{ job: string; model?: Model | string }> => this.source.ask('api/models', { source })
  trace = (body: { model: string; text: string; edits: Edit[]; untrained?: boolean; questions?: string[]; window?: number }): Promise<{ id: string; job: string; cached: boolean }> => this.source.ask('api/traces', body)
  attribution = (id: string, body: { layer: number; head: number; query: number; key: number }): Promise<Attribution> => this.source.ask(`api/traces/${id}/attribution`, body)
  cancel = (job: string): Promise<{ cancelled: boolean }> => this.source.ask(`api/jobs/${job}`, undefined, 'DELETE')

  async points(id: string, axes: string, space: string): Promise<Points> {
    const { header, arrays } = await this.binary(`api/traces/${id}/points`, { axes, space })
    const { values, shape } = arrays.points!
    const star = arrays.star?.values
    return {
      points: values, steps: shape[0]!, tokens: shape[1]!, share: header.share, shares: header.shares ?? [], space: header.space, axes: header.axes,
      star: star && star.every(Number.isFinite) ? star : null,
    }
  }

  async weights(id: string, layer: number, head: number, kind: string): Promise<Field> {
    return (await this.binary(`api/traces/${id}/weights/${layer}/${head}`, { kind })).arrays.map!
  }

  /** What one head alone adds to every token, on the axes of the cloud (token × 3). */
  async moves(id: string, layer: number, head: number, axes: string, space: string): Promise<Moves> {
    const { header, arrays } = await this.binary(`api/traces/${id}/moves/${layer}/${head}`, { axes, space })
    return { moves: arrays.moves!.values, step: header.step, share: header.share, edited: header.edited }
  }

  /** The cloud that a head reads, and how it sees it as query, key and content. */
  async images(id: string, layer: number, head: number): Promise<Images> {
    const { header, arrays } = await this.binary(`api/traces/${id}/images/${layer}/${head}`)
    const flat = { E: arrays.E!, query: arrays.query!, key: arrays.key!, content: arrays.content! }
    return { flat, agreement: arrays.agreement!.values, shares: header.shares, pairs: header.pairs, edited: header.edited }
  }

  /** What every token would say after every half-layer, with its probability (step × token). */
  async lens(id: string): Promise<{ shown: string[][]; probability: Field }> {
    const { header, arrays } = await this.binary(`api/traces/${id}/lens`)
    return { shown: header.shown, probability: arrays.probability! }
  }

  async dynamics(body: Record<string, unknown>): Promise<Envelope> {
    const answer = await fetch('./api/dynamics', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) })
    return answer.ok ? open(await answer.arrayBuffer()) : refused(answer, 'api/dynamics')
  }

  /** An analysis of a trace, asked once; one that failed can be asked again. */
  analysis(id: string, name: string, settings: Record<string, string> = {}): Promise<Answer> {
    const key = JSON.stringify([id, name, settings])
    let answer = this.answers.get(key)
    if (!answer) {
      answer = this.long.run(() => this.binary(`api/traces/${id}/analyses/${name}`, settings)).then(({ header, arrays }) => {
        if (header.reason) throw new WireError(header.reason)
        return {
          name, question: header.question ?? '', attrs: header.attrs ?? {}, coords: header.coords ?? {}, fields: header.fields ?? {},
          pictures: (header.pictures ?? []).map(singular), texts: header.texts ?? {}, left_out: header.left_out ?? [], arrays,
        }
      })
      answer.catch(() => this.answers.delete(key))
      this.answers.set(key, answer)
    }
    return answer
  }

  /** Where the numbers of an analysis can be saved from; an export holds none. */
  download = (id: string, name: string, ending: 'csv' | 'json'): string => `./api/traces/${id}/analyses/${name}.${ending}`

  /** What happens to a trace, as it happens; an export has happened already. Gives what ends the listening. */
  listen(id: string, told: Partial<Told>): () => void {
    if (!this.live) {
      void this.head(id).then((head) => told.head?.(head)).catch((error: Error) => told.error?.({ error: error.message }))
      void this.verdicts(id).then(({ verdicts, ...more }) => (verdicts.forEach((one) => told.verdict?.(one)), told.findings?.(more))).catch(() => undefined).finally(() => told.done?.())
      return () => undefined
    }
    const stream = new EventSource(`./api/traces/${id}/events`)
    const hear = (name: string, data: string | undefined) => {
      if (data === undefined) return
      ;(told as Record<string, ((x: unknown) => void) | undefined>)[name]?.(JSON.parse(data))
      if (name === 'done' || name === 'cancelled' || name === 'error') stream.close()
    }
    for (const name of EVENTS) stream.addEventListener(name, (event) => hear(name, (event as MessageEvent).data))
    return () => stream.close()
  }
}
