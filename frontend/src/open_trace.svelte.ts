/** A trace that is open: its description, story and points, as far as they have arrived. */

import type { CardLine, Client, Findings, LensStep, Points, StoryLine, TraceInfo } from './api'
import type { Text } from './messages/message'

export class OpenTrace {
  info = $state.raw<TraceInfo | null>(null)
  story = $state.raw<Record<string, StoryLine>>({})
  findings = $state.raw<Findings | null>(null)
  /** What the card of the model answers, if it has a line. */
  card = $state.raw<CardLine | null>(null)
  progress = $state.raw<{ name: Text; done: number; total: number } | null>(null)
  points = $state.raw<Points | null>(null)
  /** What the last token predicts after every step, as far as the model predicts tokens. */
  prediction = $state.raw<LensStep[] | null>(null)
  /** The components that write the prediction, the largest first. */
  written: string[] = []
  isFinished = $state(false)
  error = $state.raw<Text>('')
  /** Resolves when the description and the predictions are there, or when they will not come. */
  readonly arrived: Promise<void>
  private arrive: () => void = () => undefined
  private stopListening: () => void = () => undefined
  private pointsRequest = ''

  constructor(readonly client: Client, readonly id: string, readonly job: string) {
    this.arrived = new Promise((resolve) => (this.arrive = resolve))
  }

  /** Listens to the server until the trace is finished or closed. */
  listen(): this {
    this.stopListening = this.client.listen(this.id, {
      head: (info) => {
        this.info = info
        void this.loadPrediction(info).then(this.arrive)
      },
      line: (line) => (this.story = { ...this.story, [line.name]: line }),
      card: (card) => (this.card = card),
      findings: (findings) => (this.findings = findings),
      progress: (progress) => (this.progress = progress),
      done: () => this.finish(),
      cancelled: () => this.finish(),
      error: ({ error }) => {
        this.error = error
        this.finish()
      },
    })
    return this
  }

  private async loadPrediction({ next, tokens }: TraceInfo): Promise<void> {
    if (!next) return
    try {
      const { lens, written } = await this.client.token(this.id, tokens.length - 1)
      this.written = written.map(({ component }) => component)
      this.prediction = lens
    } catch {
      this.prediction = null // the bars then show the last step only
    }
  }

  private finish(): void {
    this.isFinished = true
    if (!this.info) this.arrive()
    this.progress = null
  }

  /** Loads the points along some axes. A response to an older request is dropped. */
  async project(axes: string, space: string): Promise<void> {
    const request = `${axes} ${space}`
    if (this.pointsRequest === request) return
    this.pointsRequest = request
    try {
      const points = await this.client.points(this.id, axes, space)
      if (this.pointsRequest === request) this.points = points
    } catch (error) {
      this.pointsRequest = ''
      throw error
    }
  }

  /** Stops listening and cancels what the server still computes for this trace. */
  async close(): Promise<void> {
    const isRunning = this.job && !this.isFinished
    this.stopListening()
    this.finish()
    this.client.abortAnalyses(this.id)
    if (isRunning) await this.client.cancel(this.job).catch(() => undefined)
  }
}
