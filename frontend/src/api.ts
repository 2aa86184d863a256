/** The server's responses as values. They come from a running server, from the files of an export or from a notebook. */

import type { Block } from './blocks/blocks'
import { loadScript } from './load_script'
import { pageMessage } from './messages'
import { render, type Text } from './messages/message'
import { RecentResponses } from './recent_responses'

export interface Model { id: string; name: Text; title: Text; layers: number; heads: number; width: number; family: string; parameters: number; dtype: string; device: string; certificate: Text; ready: boolean; pair?: boolean }
/** A model that can be opened. `note`: the certificate of an open model, the reason for a refusal. Facts that its files do not contain are null. */
export interface GalleryEntry { source: string; id: string; name: Text; family: string | null; parameters: number | null; layers: number | null; heads: number | null; tokens_per_second: number | null; status: 'unopened' | 'loading' | 'open' | 'refused'; note: Text }
export interface State { version: string; models: Model[]; model: string; example: string | null; corpus?: string | null; runs?: boolean; limits: { tokens: number; text_bytes: number; jobs: number } }
export interface FieldDescription { dims: string[]; definition: Text; unit?: Text; null?: string; null_sd?: string }
/** `expensive`: whether the analysis takes long. `room`: the group it is listed in. */
export interface AnalysisDescription { name: string; question: Text; needs: string; expensive: boolean; room: string; fields: Record<string, FieldDescription>; settings: Record<string, unknown> }
export interface Operation { name: string; title: Text; takes?: string | null; parts?: string[] }
export interface AnalysisCatalogue { analyses: AnalysisDescription[]; story: { name: string; title: Text; needs: string[]; reads_source?: boolean }[]; operations: Operation[] }
export type Part = 'M' | 'F' | 'both'
export interface Edit { layer: number; head: number; part: Part; operation: string; value?: number }
/** A token: its text, how it is displayed, and whether its norm is massive. */
export interface Token { text: string; shown: string; massive: boolean }
export interface TokenProbability { id: number; shown: string; probability: number }
/** Window `number` of `total`, both counted from 1. It contains the tokens `first` to `last` of `tokens`. */
export interface Window { number: number; total: number; first: number; last: number; tokens: number }
/** Which cloud of an encoder-decoder a trace shows, the tokens of its source, and how many steps each cloud has. */
export interface PairInfo { side: 'source' | 'target'; source: string[]; steps: { source: number; target: number } }
export interface TraceInfo { id: string; model: string; text: string; window?: Window | null; lost?: Text | null; tokens: Token[]; steps: string[]; layers: number; heads: number; width: number; edits: Edit[]; next: (TokenProbability & { token: string }) | null; top: TokenProbability[]; provenance: Record<string, unknown>; pair?: PairInfo | null }
export interface Finding { text: Text; analysis: string; q: number | null }
/** `held`: how many numbers were tested. */
export interface Findings { findings: Finding[]; held: Text }
/** A line of the story of a text. `needs`: the analyses behind it. */
/** What the card of the model answers. */
export interface CardLine { sentence: Text | null }
export interface StoryLine { name: string; title: Text; sentence: Text; deeper: string; needs: string[] }
export interface Points { points: Float32Array; steps: number; tokens: number; star: Float32Array | null; share: number; shares: number[]; space: string; axes: string }
export interface Spectrum { M: number[]; F: number[]; symmetry: number; positive_share: number; copying: number }
export interface Attribution { components: { name: string; contribution: number }[]; score: number }
/** The cost of edits in nats. `kl`: mean over tokens of KL(before ‖ after); `kl_last`: that of the last token. */
export interface EditCost { kl: number; kl_last: number; loss_before: number | null; loss_after: number | null }
export interface Moves { moves: Float32Array; step: string; share: number; edited: boolean }
export interface Pair { first: number; second: number; before: number; after: number }
export type Image = 'query' | 'key' | 'content'
export interface Images { flat: Record<'E' | Image, Field>; agreement: Float32Array; shares: Record<'E' | Image, number[]>; pairs: Record<Image, Record<'separated' | 'merged', Pair[]>>; edited: boolean }
/** `top`: the most likely next tokens after a step. */
export interface LensStep { step: string; top: TokenProbability[] }
export interface TokenDetail { lens: LensStep[]; written: { component: string; logits: number }[] }

/** The prompt of a generation: its tokens, those that the decoder reads with their paths (token × step × 3), and the steps of the lens. */
export interface GenerationPrompt { tokens: string[]; read: string[]; steps: string[]; lens_steps: string[]; paths: number[][][] }
/** A new token. `path` is that of the token before it, at `position`, which predicts it. */
export interface GeneratedToken {
  index: number; shown: string; position: number; probability: number; path: number[][]; lens: { step: string; shown: string; probability: number }[]; decided_at: string
  logit_above_mean: number; from_prompt: number; from_answer: number; by_prompt_token: number[]
  sources: { position: number; shown: string; value: number; cross: boolean }[]; heads: { name: string; value: number }[]
}
/** The whole answer as a sum: groups (prompt, answer, embedding, mlp, rest), prompt tokens and the largest heads. */
export interface AnswerAttribution { logit_above_mean: number; groups: Record<string, number>; by_prompt_token: number[]; heads: { name: string; value: number }[] }
export interface GenerationRequest { text: string; model: string; tokens: number; temperature: number; seed: number }
export interface GenerationListener { prompt(prompt: GenerationPrompt): void; token(token: GeneratedToken): void; answer(answer: AnswerAttribution): void; error(event: { error: Text }): void; done(): void; cancelled(): void }

/** A corpus run: `shards` of `total_shards` shards are finished; `fields` lists its per-head fields as `analysis.field`. */
export interface CorpusSummary { name: string; model: string; weights: string; layers: number; heads: number; texts: number; tokens: number; rejects: number; shards: number; total_shards: number; length: number; packed: boolean; fields: string[] }
/** A per-head field over the corpus: mean, low, high, sd, texts and, if it has one, null. */
export interface CorpusField { coords: AnalysisResult['coords']; arrays: Record<string, Field> }
/** `around`: the text before the token of the example, the token, and the text after it. */
export interface CorpusExample { value: number; text: string; file: string; line: number; tokens: number; token: number | null; around: [string, string, string] | null }
export interface Distribution { edges: number[]; shares: number[]; null: number[] | null; outside: number }
export interface CorpusHead { mean: number | null; low: number | null; high: number | null; sd: number | null; texts: number; documents: number; items: number; quantiles: Record<string, number | null>; distribution: Distribution; most: CorpusExample[]; least: CorpusExample[] }

export interface ArrayHeader { name: string; dtype: string; shape: number[]; dims: string[]; offset: number; scale?: number; zero?: number; missing?: boolean }
export interface Field { values: Float32Array; shape: number[]; dims: string[] }
export const fieldDifference = (after: Field, before: Field): Field => ({ ...after, values: after.values.map((value, index) => value - before.values[index]!) })
export interface Envelope { header: Record<string, any>; arrays: Record<string, Field> }
export interface AnalysisResult { name: string; question: Text; /** Its main number in words, or ''. */ sentence: Text; attrs: Record<string, unknown>; coords: Record<string, { dims: string[]; values: any[] }>; fields: Record<string, FieldDescription>; pictures: Picture[]; texts: Record<string, any>; left_out: string[]; arrays: Record<string, Field> }

export interface AnalysisTables { blocks: Block[] }

/** Parts of a picture, with `Text` as the server sends it, or with `string` when it is rendered. */
export interface Axis<T = Text> { label: T; names: T[]; marked: number[]; log: boolean; bare: boolean; low: number | null; high: number | null }
export type Numbers = (number | null)[]
export interface Line<T = Text> { mark: 'line'; name: T; x: Numbers; y: Numbers; colour: string; style: string; tip: T; tips: T[] }
export interface Shape<T = Text> { mark: 'shape'; name: T; x: Numbers; y: Numbers; colour: string; opacity: number; tip: T }
export interface Cells<T = Text> { mark: 'cells'; values: Numbers[]; texts: T[][]; tips: T[][]; marked: [number, number][]; low: number; high: number; centre: number; name?: T }
export interface Label<T = Text> { mark: 'label'; x: number; y: number; text: T; side: string; strong: boolean }
export type Mark<T = Text> = Line<T> | Shape<T> | Cells<T> | Label<T>
export interface Panel<T = Text> { title: T; about: T; marks: Mark<T>[]; x: Axis<T>; y: Axis<T>; columns: number; height: number; equal: boolean; name: string }
export interface Picture { title: Text; caption: Text; panels: Panel[] }

/** A refusal or a failure, with a text that can be shown in any language. */
export class ApiError extends Error {
  constructor(readonly text: Text, readonly status = 0) { super(render(text)) }
}
/** Why a page without a server has no answer. */
export const NOT_EXPORTED: Text = pageMessage('not_exported', { command: { command: 'rheoscope studio' } })
export const errorText = (error: unknown): Text => (error instanceof ApiError ? error.text : error instanceof Error ? error.message : String(error))

/** The server could not be reached. The page reconnects. */
export class LostServerError extends ApiError {
  constructor() { super(pageMessage('server_lost')) }
}

/** The bits of a float16 (sign, 5 bits exponent, 10 bits mantissa) as a number. */
export function float16ToNumber(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1
  const exponent = (bits >> 10) & 31
  const mantissa = bits & 1023
  if (exponent === 0) return sign * mantissa * 2 ** -24
  if (exponent === 31) return mantissa ? NaN : sign * Infinity
  return sign * (1 + mantissa / 1024) * 2 ** (exponent - 15)
}

const FLOAT16_TABLE = new Float32Array(65536).fill(NaN)
let isTableFilled = false

function float16ToFloat32(data: Uint16Array): Float32Array {
  if (!isTableFilled) {
    for (let bits = 0; bits < 65536; bits++) FLOAT16_TABLE[bits] = float16ToNumber(bits)
    isTableFilled = true
  }
  return Float32Array.from(data, (bits) => FLOAT16_TABLE[bits]!)
}

/** The values of an array of an envelope, as float32. */
export function decodeArray(buffer: ArrayBuffer, start: number, header: ArrayHeader): Float32Array {
  const count = header.shape.reduce((a, b) => a * b, 1)
  const offset = start + header.offset
  switch (header.dtype) {
    case 'float32': return new Float32Array(buffer, offset, count)
    case 'float16': return float16ToFloat32(new Uint16Array(buffer, offset, count))
    case 'int32': return Float32Array.from(new Int32Array(buffer, offset, count))
    case 'uint8': {
      const { scale = 1, zero = 0, missing = false } = header
      return Float32Array.from(new Uint8Array(buffer, offset, count), (v) => (missing && v === 255 ? NaN : zero + v * scale))
    }
    default: throw new ApiError(`the server sent an array of type ${header.dtype}; expected float32, float16, int32 or uint8`)
  }
}

/** The header of an envelope, and the offset at which its arrays start. */
export function readHeader(buffer: ArrayBuffer): { header: Record<string, any> & { arrays: ArrayHeader[] }; start: number } {
  const view = new DataView(buffer)
  if (buffer.byteLength < 8 || view.getUint32(0) !== 0x5248454f) throw new ApiError('the response is not an envelope: it does not start with RHEO')
  const length = view.getUint32(4, true)
  return { header: JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length))), start: 8 + length }
}

/** Header and arrays of an envelope. */
export function decodeEnvelope(buffer: ArrayBuffer): Envelope {
  const { header, start } = readHeader(buffer)
  const arrays: Record<string, Field> = {}
  for (const array of header.arrays) arrays[array.name] = { values: decodeArray(buffer, start, array), shape: array.shape, dims: array.dims ?? [] }
  return { header, arrays }
}

/** Marks with the tags that the page uses; the server writes them in the plural. */
export function normaliseMarks(picture: Picture): Picture {
  const tags: Record<string, string> = { lines: 'line', shapes: 'shape', words: 'label', word: 'label', labels: 'label' }
  const panels = picture.panels.map((panel) => ({
    ...panel,
    marks: panel.marks.map((mark) => ({ ...mark, mark: tags[mark.mark] ?? mark.mark }) as Mark),
  }))
  return { ...picture, panels }
}

/** Callbacks for the events of a trace, named as the server names the events. */
export interface TraceListener { head(h: TraceInfo): void; line(line: StoryLine): void; card(card: CardLine): void; findings(f: Findings): void; progress(p: { name: Text; done: number; total: number }): void; known(k: { name: string }): void; done(): void; error(e: { error: Text }): void; cancelled(): void }

declare global { var RHEOSCOPE_FILES: Record<string, string> | undefined }

export type Extension = 'json' | 'bin'

/** Where responses come from: `read` gets one by path and query, `send` posts a body to a running server. */
export interface Source {
  readonly isLive: boolean
  read(path: string, query: Record<string, string>, extension: Extension, signal?: AbortSignal): Promise<ArrayBuffer>
  send(path: string, body: unknown, method?: string, signal?: AbortSignal): Promise<any>
  /** Called when the server cannot be reached. */
  onLost?: () => void
}

async function throwRefusal(response: Response, path: string): Promise<never> {
  const body = await response.json().catch(() => ({}))
  throw new ApiError(body.error ?? `${path} returned status ${response.status}`, response.status)
}

export class Server implements Source {
  readonly isLive = true
  onLost: () => void = () => undefined
  async read(path: string, query: Record<string, string>, _extension: Extension, signal?: AbortSignal): Promise<ArrayBuffer> {
    const search = new URLSearchParams(query).toString()
    const response = await this.request(`./${path}${search ? `?${search}` : ''}`, { signal })
    return response.ok ? response.arrayBuffer() : throwRefusal(response, path)
  }
  /** Small requests such as a cancellation outlive the page (`keepalive`). */
  async send(path: string, body: unknown, method = 'POST', signal?: AbortSignal): Promise<any> {
    const response = await this.request(`./${path}`, {
      method, signal,
      ...(body === undefined ? { keepalive: true } : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
    })
    return response.ok ? response.json() : throwRefusal(response, path)
  }
  /** `fetch`, which fails with a TypeError if the server cannot be reached. */
  private async request(url: string, options: RequestInit): Promise<Response> {
    try {
      return await fetch(url, options)
    } catch (error) {
      if (!(error instanceof TypeError)) throw error
      this.onLost()
      throw new LostServerError()
    }
  }
}

/** The file of an export that holds a response. Default values of the query are not part of its name. */
export function exportFile(path: string, query: Record<string, string>, extension: Extension): string {
  const defaults = ['prediction', 'all', 'sphere', 'weights'] // a file has one choice of axes: without a prediction they are all axes
  const values = Object.values(query).filter((value) => !defaults.includes(value))
  return [path, ...values, extension].join('.')
}

/** Decompresses a file if it is gzip. */
export async function decompress(buffer: ArrayBuffer): Promise<ArrayBuffer> {
  const start = new Uint8Array(buffer, 0, Math.min(2, buffer.byteLength))
  if (start[0] !== 0x1f || start[1] !== 0x8b) return buffer
  return new Response(new Blob([buffer]).stream().pipeThrough(new DecompressionStream('gzip'))).arrayBuffer()
}

/** The script of an export that contains a file. Files of single heads and tokens are in scripts that load on demand. */
export function exportScript(file: string): string {
  const headFile = /\/(?:weights|spectrum|moves|images|cross)\/(\d+)\/\d+\./.exec(file)
  if (headFile) return `data/layer-${headFile[1]}.js`
  if (file.includes('/token/')) return 'data/tokens.js'
  return file.startsWith('api/cards/') ? 'data/card.js' : 'data.js'
}

export class ExportedFiles implements Source {
  readonly isLive = false
  private scripts = new Map<string, Promise<boolean>>()
  constructor(readonly load: (script: string) => Promise<boolean> = loadScript, readonly isOneFile = false) {}
  async read(path: string, query: Record<string, string>, extension: Extension): Promise<ArrayBuffer> {
    const file = exportFile(path, query, extension)
    const script = exportScript(file)
    if (globalThis.RHEOSCOPE_FILES?.[file] === undefined && !this.isOneFile) {
      if (!this.scripts.has(script)) this.scripts.set(script, this.load(script))
      await this.scripts.get(script)
    }
    const text = globalThis.RHEOSCOPE_FILES?.[file]
    if (text === undefined) throw new ApiError(NOT_EXPORTED, 404)
    return decompress(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer)
  }
  send(): Promise<never> { return Promise.reject(new ApiError(NOT_EXPORTED, 405)) }
}

/** The trace of an exported page; null on a page from a running server. */
export function exportedTrace(page: Document = document): { trace: string; content?: 'journey'; language?: string } | null {
  const json = page.getElementById('rheoscope-export')?.textContent
  return json ? JSON.parse(json) : null
}

const EVENTS = ['head', 'line', 'card', 'findings', 'progress', 'known', 'done', 'error', 'cancelled'] as const
const GENERATION_EVENTS = ['prompt', 'token', 'answer', 'done', 'error', 'cancelled'] as const

/** Runs a limited number of jobs at a time, in order. A browser has six connections to a server; slow requests must leave some free. */
export class Queue {
  private waiting: (() => void)[] = []
  constructor(private free: number) {}
  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.free > 0) this.free--
    else await new Promise<void>((resolve) => this.waiting.push(resolve))
    try {
      return await work()
    } finally {
      const next = this.waiting.shift()
      if (next) next()
      else this.free++
    }
  }
}

/** Every call of the HTTP API. */
export class Client {
  private results = new Map<string, Promise<AnalysisResult>>()
  private slowRequests = new Queue(2)
  /** What the panels of a head show, before and after edits. */
  private headResponses = new RecentResponses(12)
  /** Id of a trace → what aborts its running analyses. */
  private controllers = new Map<string, AbortController>()
  constructor(readonly source: Source) {}
  get isLive(): boolean { return this.source.isLive }

  private async json<T>(path: string, query: Record<string, string> = {}): Promise<T> {
    return JSON.parse(new TextDecoder().decode(await this.source.read(path, query, 'json')))
  }
  private async binary(path: string, query: Record<string, string> = {}, signal?: AbortSignal): Promise<Envelope> {
    return decodeEnvelope(await this.source.read(path, query, 'bin', signal))
  }

  state = () => this.json<State>('api/state')
  models = () => this.json<{ models: Model[]; recent: string[]; sources: string[] }>('api/models')
  gallery = () => this.json<GalleryEntry[]>('api/gallery')
  analysisCatalogue = () => this.json<AnalysisCatalogue>('api/catalogue')
  traceInfo = (id: string) => this.json<TraceInfo>(`api/traces/${id}`)
  story = (id: string) => this.json<{ story: StoryLine[]; card: CardLine } & Findings>(`api/traces/${id}/story`)
  spectrum = (id: string, layer: number, head: number) => {
    const path = `api/traces/${id}/spectrum/${layer}/${head}`
    return this.headResponses.read(path, () => this.json<Spectrum>(path))
  }
  token = (id: string, position: number) => this.json<TokenDetail>(`api/traces/${id}/token/${position}`)
  /** The probabilities of some tokens to come next, after a step. */
  nextTokens = (id: string, step: number, tokens: number[]) => this.json<TokenProbability[]>(`api/traces/${id}/next/${step}`, { ids: tokens.join() })
  /** A report that is sent as blocks: a card, the atlas, or a training run. */
  report = <T>(path: string) => this.json<T>(path)
  /** Whether the clouds of two traces can be shown on the same axes. */
  commonSpace = (first: string, second: string) => this.json<{ shared: boolean }>(`api/traces/${first}/comparison/${second}/space`)
  editCost = (id: string) => this.json<EditCost>(`api/traces/${id}/cost`)
  corpus = () => this.json<CorpusSummary>('api/corpus')
  corpusHead = (analysis: string, field: string, layer: number, head: number, slice: number) => this.json<CorpusHead>(`api/corpus/${analysis}/${field}/${layer}/${head}`, { piece: String(slice) })
  async corpusField(analysis: string, field: string): Promise<CorpusField> {
    const { header, arrays } = await this.binary(`api/corpus/${analysis}/${field}`)
    return { coords: header.coords, arrays }
  }
  openModel = (source: string): Promise<{ job: string; model?: Model | string }> => this.source.send('api/models', { source })
  trace = (body: { model: string; text: string; edits: Edit[]; untrained?: boolean; lines?: string[]; window?: number; target?: string }, signal?: AbortSignal): Promise<{ id: string; job: string; cached: boolean }> => this.source.send('api/traces', body, 'POST', signal)
  /** The model's own output for a source. */
  ownTarget = (model: string, text: string): Promise<{ target: string }> => this.source.send('api/targets', { model, text })
  attribution = (id: string, body: { layer: number; head: number; query: number; key: number }): Promise<Attribution> => this.source.send(`api/traces/${id}/attribution`, body)
  cancel = (job: string): Promise<{ cancelled: boolean }> => this.source.send(`api/jobs/${job}`, undefined, 'DELETE')

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
    const path = `api/traces/${id}/weights/${layer}/${head}`
    return (await this.headResponses.read(`${path} ${kind}`, () => this.binary(path, { kind }))).arrays.map!
  }

  /** The weights of target tokens on source tokens of a head of cross-attention. */
  async crossWeights(id: string, layer: number, head: number): Promise<Field> {
    return (await this.binary(`api/traces/${id}/cross/${layer}/${head}`)).arrays.map!
  }

  /** The update that one head alone adds to every token, on the axes of the cloud (token × 3). */
  async moves(id: string, layer: number, head: number, axes: string, space: string): Promise<Moves> {
    const { header, arrays } = await this.binary(`api/traces/${id}/moves/${layer}/${head}`, { axes, space })
    return { moves: arrays.moves!.values, step: header.step, share: header.share, edited: header.edited }
  }

  /** The cloud that a head reads, and its images as query, key and content. */
  async images(id: string, layer: number, head: number): Promise<Images> {
    const path = `api/traces/${id}/images/${layer}/${head}`
    const { header, arrays } = await this.headResponses.read(path, () => this.binary(path))
    const flat = { E: arrays.E!, query: arrays.query!, key: arrays.key!, content: arrays.content! }
    return { flat, agreement: arrays.agreement!.values, shares: header.shares, pairs: header.pairs, edited: header.edited }
  }

  /** The predicted next token of every token after every half-layer, with its probability (step × token). */
  async lens(id: string): Promise<{ shown: string[][]; probability: Field }> {
    const { header, arrays } = await this.binary(`api/traces/${id}/lens`)
    return { shown: header.shown, probability: arrays.probability! }
  }

  async dynamics(body: Record<string, unknown>): Promise<Envelope> {
    const response = await fetch('./api/dynamics', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) })
    return response.ok ? decodeEnvelope(await response.arrayBuffer()) : throwRefusal(response, 'api/dynamics')
  }

  /** The result of an analysis. It is requested once, and again only after a failure. */
  analysis(id: string, name: string, settings: Record<string, string> = {}): Promise<AnalysisResult> {
    const key = JSON.stringify([id, name, settings])
    let result = this.results.get(key)
    if (!result) {
      const { signal } = this.controllerOf(id)
      result = this.slowRequests.run(() => this.binary(`api/traces/${id}/analyses/${name}`, settings, signal)).then(({ header, arrays }) => {
        if (header.reason) throw new ApiError(header.reason)
        return {
          name, question: header.question ?? '', sentence: header.sentence ?? '', attrs: header.attrs ?? {}, coords: header.coords ?? {}, fields: header.fields ?? {},
          pictures: (header.pictures ?? []).map(normaliseMarks), texts: header.texts ?? {}, left_out: header.left_out ?? [], arrays,
        }
      })
      result.catch(() => this.results.delete(key))
      this.results.set(key, result)
    }
    return result
  }

  /** Follows the computation of an analysis: the listener receives its finished share. Returns a function that stops. */
  analysisProgress(id: string, name: string, settings: Record<string, string>, onShare: (share: number) => void): () => void {
    const stream = new EventSource(`./api/traces/${id}/analyses/${name}/progress?${new URLSearchParams(settings)}`)
    const close = () => stream.close()
    stream.addEventListener('progress', (event) => {
      const { done, total } = JSON.parse((event as MessageEvent).data)
      onShare(done / total)
    })
    for (const last of ['done', 'cancelled', 'error']) stream.addEventListener(last, close)
    return close
  }

  /** The numbers of an analysis as the tables that the terminal prints. */
  tables = (id: string, name: string, settings: Record<string, string> = {}) => this.json<AnalysisTables>(`api/traces/${id}/analyses/${name}/tables`, settings)

  private controllerOf(id: string): AbortController {
    let controller = this.controllers.get(id)
    if (!controller) this.controllers.set(id, (controller = new AbortController()))
    return controller
  }

  /** Aborts the running analyses of a trace that is closed. Its next request starts them again. */
  abortAnalyses(id: string): void {
    this.controllers.get(id)?.abort()
    this.controllers.delete(id)
  }

  /** The address of the values of an analysis as a file; a running server has it. */
  downloadUrl = (id: string, name: string, extension: 'csv' | 'json'): string => `./api/traces/${id}/analyses/${name}.${extension}`

  /** The address of a text as a page in one file. */
  pageUrl = (id: string, language: string): string => `./api/traces/${id}/page?language=${language}`

  /** Calls a listener for every event of a trace. Returns a function that stops listening. An export has all events at once. */
  listen(id: string, listener: Partial<TraceListener>): () => void {
    if (!this.isLive) {
      void this.traceInfo(id).then((info) => listener.head?.(info)).catch((error: unknown) => listener.error?.({ error: errorText(error) }))
      void this.story(id).then(({ story, card, ...more }) => (story.forEach((line) => listener.line?.(line)), listener.card?.(card), listener.findings?.(more))).catch(() => undefined).finally(() => listener.done?.())
      return () => undefined
    }
    return this.follow(`./api/traces/${id}/events`, EVENTS, listener)
  }

  private follow(path: string, names: readonly string[], listener: object): () => void {
    const stream = new EventSource(path)
    const dispatch = (name: string, data: string | undefined) => {
      if (data === undefined) {
        stream.close()
        return this.source.onLost?.()
      }
      ;(listener as Record<string, ((x: unknown) => void) | undefined>)[name]?.(JSON.parse(data))
      if (name === 'done' || name === 'cancelled' || name === 'error') stream.close()
    }
    for (const name of names) stream.addEventListener(name, (event) => dispatch(name, (event as MessageEvent).data))
    return () => stream.close()
  }

  /** Continues a text, and calls the listener for every event. Returns a function that stops the model. */
  async generate(request: GenerationRequest, listener: GenerationListener): Promise<() => void> {
    const { job } = await this.source.send('api/generations', request)
    const close = this.follow(`./api/jobs/${job}/events`, GENERATION_EVENTS, listener)
    return () => (close(), void this.source.send(`api/jobs/${job}`, undefined, 'DELETE').catch(() => undefined))
  }
}
