/** The page: one link, one selection, one trace and what stands beside it. */

import { OWN, type Address } from './address'
import { axesRead } from './axes'
import { read, remembered, SHOWN, USUAL, written, type Link, type Shown, type Side, type Switched } from './link'
import { LANGUAGES, said, type Key, type Language } from './messages'
import { Opened } from './opened.svelte'
import { DARK, LIGHT, type Theme } from './palette'
import type { AnalysisSaid, Catalogue, Client, FieldSaid, Model, State } from './wire'

/** `embed` or L3.resid_mid as it is shown on the page: embed, L3 ½, L3. */
export function stepShown(step: string): string {
  const layer = /^L(\d+)/.exec(step)
  if (!layer) return step
  return /mid/.test(step) ? `L${layer[1]} ½` : `L${layer[1]}`
}

export const layerOf = (step: string | undefined): number | null => {
  const layer = /L(\d+)/.exec(step ?? '')
  return layer ? Number(layer[1]) : null
}

/** Told where no example is stored: about 60 tokens, so that each of the seven questions can be answered. */
const SAMPLE = 'The king kept his gold in the bank, and the children played on the bank of the river. The river went to the sea, and the sea was great and deep. One day the king took the gold from the bank, put it in a ship and sent the ship down the'

export class Studio {
  link = $state<Link>({ ...USUAL })
  hovered = $state<number | null>(null)
  state = $state.raw<State | null>(null)
  catalogue = $state.raw<Catalogue | null>(null)
  models = $state.raw<Model[]>([])
  /** What may be opened, what was opened last first. */
  recent = $state.raw<string[]>([])
  trace = $state.raw<Opened | null>(null)
  other = $state.raw<Opened | null>(null)
  error = $state('')
  opening = $state('')
  /** Where the scrubber is on its way to `link.step`. */
  at = $state(0)
  playing = $state(false)
  speed = $state(1)
  dark = $state(false)
  calm = $state(false)
  /** A page opened afresh, or with a new text, plays once, as soon as there is a cloud. */
  private greets = false
  private wanted = ''
  private besideWanted = ''

  constructor(readonly client: Client, readonly only: string | null, readonly address: Address = OWN) {}

  // What is said

  get language(): string { return [this.link.language, navigator.language.slice(0, 2)].find((one) => one in LANGUAGES) ?? 'en' }
  private get spoken(): Language { return LANGUAGES[this.language]! }
  get lang(): string { return this.spoken.lang }
  say = (key: Key, filled: Record<string, string | number> = {}): string => said(this.spoken.page, key, filled)
  /** What the server says in English, in the language of the page. */
  tell = (text: string): string => this.spoken.said.tell(text)
  /** The same for a name on a panel; a token of the text stays as it is. */
  label = (text: string): string => (this.tokens.has(text) ? text : this.tell(text))
  private tokens = $derived(new Set(this.trace?.head?.tokens.map((one) => one.shown)))
  get theme(): Theme { return this.dark ? DARK : LIGHT }

  // What is selected

  get head() { return this.trace?.head ?? null }
  get stepName(): string { return this.head?.steps[this.link.step] ?? '' }
  /** Tokens that stand out: the hovered one, else the pinned ones. */
  get bright(): Set<number> {
    const chosen = this.hovered !== null ? [this.hovered] : [this.link.token, this.link.second]
    return new Set(chosen.filter((one) => one !== null))
  }
  get edits(): Switched[] { return this.link.edits.filter((one) => !one.off) }
  /** What stands beside: an edit always has what was before it. */
  get beside(): string { return this.link.beside || (this.edits.length ? 'before' : '') }
  /** The text without its edits, where it stands beside it. */
  get before(): Opened | null { return this.edits.length && this.beside === 'before' && this.other?.head ? this.other : null }
  get side(): Side { return this.before ? this.link.side : 'after' }
  /** What is asked of a text, of the side of its edits that is looked at: `less` makes the difference. */
  async sided<T>(ask: (id: string) => Promise<T>, less: (after: T, before: T) => T): Promise<T> {
    const [after, before, side] = [this.trace!.id, this.before?.id, this.side]
    if (!before || side === 'after') return ask(after)
    return side === 'before' ? ask(before) : less(...(await Promise.all([ask(after), ask(before)])))
  }

  /** The name of an analysis or of a field, in words. */
  named = (name: string): string => this.tell(name.replaceAll('_', ' '))
  /** What a field means, and its unit. */
  defined = (field: FieldSaid | undefined): string => (field ? `${this.tell(field.definition)}${field.unit ? ` (${this.tell(field.unit)})` : ''}` : '')
  analysis = (name: string): AnalysisSaid | undefined => this.catalogue?.analyses.find((one) => one.name === name)

  // The link

  go(change: Partial<Link>): void {
    Object.assign(this.link, change)
    this.address.write(`#${written(this.link)}`, remembered(change))
  }

  follow(): void {
    Object.assign(this.link, read(this.address.read()))
    this.at = this.link.step
  }

  shows = (what: Shown): boolean => this.link.show.includes(what)
  show(what: Shown, on: boolean): void {
    this.go({ show: SHOWN.filter((one) => (one === what ? on : this.shows(one))) })
  }

  /** A text of one's own, from its first step on. */
  run(text: string): void {
    this.playing = false
    this.greets = true
    this.at = 0
    this.go({ text, window: null, token: null, second: null, step: 0 })
  }

  /** Another window of a long text. */
  turnTo(window: number): void {
    this.go({ window, token: null, second: null })
  }

  pin(token: number, second: boolean): void {
    if (second && this.link.token !== null) this.go({ second: this.link.second === token ? null : token })
    else this.go({ token: this.link.token === token ? null : token, second: null })
  }

  clear(): void {
    this.hovered = null
    this.go({ token: null, second: null, layer: null, head: null })
  }

  walk(by: number): void {
    const last = (this.head?.steps.length ?? 1) - 1
    this.go({ step: Math.max(0, Math.min(last, this.link.step + by)) })
  }

  walkHeads(by: number): void {
    const head = this.head
    if (!head) return
    const { layer, head: column } = this.link
    const now = layer === null || column === null ? (by > 0 ? -1 : head.layers * head.heads) : layer * head.heads + column
    const next = Math.max(0, Math.min(head.layers * head.heads - 1, now + by))
    this.go({ layer: Math.floor(next / head.heads), head: next % head.heads })
  }

  toggle(play = !this.playing): void {
    if (play && this.link.step >= (this.head?.steps.length ?? 1) - 1) {
      this.go({ step: 0 })
      this.at = 0
    }
    this.playing = play
  }

  /** The first cloud of a fresh page moves by itself, unless motion is unwelcome. */
  greet(): void {
    if (this.greets && !this.calm) this.toggle(true)
    this.greets = false
  }

  // What is loaded

  async start(): Promise<void> {
    this.follow()
    this.greets = !/[#&]step=/.test(this.address.read()) && !this.link.edits.length
    try {
      this.state = await this.client.state()
      this.models = this.state.models
      void this.client.catalogue().then((catalogue) => (this.catalogue = catalogue), this.fail)
      void this.client.models().then((told) => this.list(told), () => undefined)
    } catch (error) {
      this.fail(error)
    }
  }

  private list({ models, recent, sources }: Awaited<ReturnType<Client['models']>>): void {
    this.models = models
    this.recent = [...new Set([...recent, ...sources])]
  }

  fail = (error: unknown): void => {
    this.error = error instanceof Error ? error.message : String(error)
  }

  /** A trace of the text under the edits; the stored example where nothing is asked. */
  private async openFor(model: string, text: string, edits: Switched[], told: { untrained?: boolean; questions?: string[]; window?: number } = {}): Promise<Opened> {
    const plain = !edits.length && !told.untrained && (!model || model === this.state!.model)
    if (this.only) return new Opened(this.client, this.only, '').follow()
    const { example } = this.state!
    if (plain && !text && example) return new Opened(this.client, example, '').follow()
    const own = text || this.exampleText
    const body = { model: model || this.state!.model, text: own, edits: edits.map(({ off: _, ...edit }) => edit), ...told }
    const { id, job } = await this.client.trace(body)
    return new Opened(this.client, id, job).follow()
  }
  private exampleText = ''
  private async readExample(): Promise<void> {
    if (!this.exampleText && !this.only) this.exampleText = this.state!.example ? (await this.client.head(this.state!.example)).text : SAMPLE
  }

  private get windowed(): { window?: number } { return this.link.window === null ? {} : { window: this.link.window } }

  async open(): Promise<void> {
    if (!this.state) return
    const wish = JSON.stringify([this.link.model, this.link.text, this.link.window, this.edits])
    if (wish === this.wanted) return
    this.wanted = wish
    this.error = ''
    this.opening = 'trace'
    try {
      await this.readExample()
      const opened = await this.openFor(this.link.model, this.link.text, this.edits, this.windowed)
      if (wish !== this.wanted) return opened.leave()
      this.trace?.leave()
      this.trace = opened
    } catch (error) {
      this.wanted = ''
      this.fail(error)
    }
    this.opening = ''
  }

  async openBeside(): Promise<void> {
    if (!this.state) return
    const { model, text } = this.link
    const beside = this.beside
    const wish = JSON.stringify([beside, beside && [model, text, this.link.window]])
    if (wish === this.besideWanted) return
    this.besideWanted = wish
    this.other?.leave()
    this.other = null
    if (!beside) return
    const named = (kind: string) => beside.slice(kind.length)
    try {
      await this.readExample()
      const opened = beside.startsWith('text:') ? await this.openFor(model, named('text:'), this.edits, { questions: [] })
        : beside.startsWith('model:') ? await this.openFor(named('model:'), text, [], { questions: [], ...this.windowed })
        : await this.openFor(model, text, [], { questions: [], ...this.windowed, ...(beside === 'untrained' ? { untrained: true } : {}) })
      if (wish === this.besideWanted) this.other = opened
      else opened.leave()
    } catch (error) {
      this.besideWanted = ''
      this.fail(error)
    }
  }

  /** The points of a trace along the axes of the link, as `lender` has them; a text that is named there is put through the model. */
  async project(trace: Opened, axes: string, space: string, lender: Opened | null = null): Promise<void> {
    try {
      const read = axesRead(axes)
      const own = lender ? `text:${lender.id}/${axes}` : axes
      await trace.project(read.kind === 'text' ? await this.lent(read.text) : own, space)
    } catch (error) {
      this.fail(error)
    }
  }
  private async lent(text: string): Promise<string> {
    const { id } = await this.client.trace({ model: this.link.model || this.state!.model, text, edits: [], questions: [] })
    return `text:${id}`
  }

  async cancel(): Promise<void> {
    await this.trace?.cancel()
    this.error = this.say('cancelled')
  }

  async openModel(source: string): Promise<void> {
    this.opening = source
    this.error = ''
    try {
      const { model } = await this.client.openModel(source)
      this.list(await this.client.models())
      const id = typeof model === 'string' ? model : (model?.id ?? this.models.find((one) => one.name === source)?.id)
      if (id) this.go({ model: id, window: null, edits: [], layer: null, head: null })
    } catch (error) {
      this.fail(error)
    }
    this.opening = ''
  }
}
